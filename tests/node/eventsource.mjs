// Follows threads with the npm package `eventsource`, and prints what it is told: one JSON object a line.
//
//     node eventsource.mjs BASE TOKEN KINDS THREAD...      KINDS: the types of events, separated by commas
//
// A line is [client, type, lastEventId, data]; "closed" with its HTTP status is a client's last, "open" tells of
// each of its connections. Ends when all clients are closed, which they are when their thread rests.
import { EventSource } from 'eventsource'

const [base, token, kinds, ...threads] = process.argv.slice(2)
const headers = token ? { Authorization: `Bearer ${token}` } : {}
const tell = (...line) => process.stdout.write(JSON.stringify(line) + '\n')

threads.forEach((thread, client) => {
  const source = new EventSource(`${base}/v1/threads/${thread}/events?until=rest`, {
    fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, ...headers } }),
  })
  source.onopen = () => tell(client, 'open', '', '')
  source.onerror = (error) => {
    // While it will come back by itself it is CONNECTING. Any answer but 200 ends it; 204 says that it has all.
    if (source.readyState === EventSource.CLOSED) tell(client, 'closed', '', String(error.code ?? ''))
  }
  for (const kind of kinds.split(',')) {
    source.addEventListener(kind, (event) => tell(client, kind, event.lastEventId, event.data))
  }
  source.addEventListener('rested', () => {
    source.close()
    tell(client, 'closed', '', '200')
  })
})
