"""Ask the model: render, stream the reply, record it."""

import hashlib

import msgspec

from tenuto import limits
from tenuto.context import instructed, lint
from tenuto.context.to_user import Speaker, spoken
from tenuto.errors import ConfigurationError, InvalidInput, LeaseLost, ModelError, StoreError
from tenuto.events import (
    Call,
    CallId,
    Event,
    HistoryRepaired,
    ModelFailed,
    ModelReplied,
    ThreadCompleted,
    clean,
)
from tenuto.loop.act import start_reads
from tenuto.loop.holder import Holder, logger
from tenuto.messages import Message, Reply, Request, StatusLine
from tenuto.steps import questions_after
from tenuto.tools import error_text
from tenuto.tools.tool import plan


async def decide(holder: Holder) -> None:
    """One question to the model and its answer in the log.

    Nothing has an effect before the reply is appended: if the process dies, the model is asked again.
    """
    state, agent = holder.state, holder.agent
    seen_seq = state.head_seq
    instructions = instructed(agent.instructions, state)
    messages: list[Message]
    if agent.render is None:
        messages = holder.rendering.update(state, instructions)
    else:
        messages, repairs = lint(agent.render(state))
        if repairs:
            # What slips in here is not in this list: then it is made again.
            if not await holder.append(HistoryRepaired(repairs), conditional=True):
                return
            seen_seq = state.head_seq
    prompt, tools, parameters = await _sent(holder, instructions)
    request = Request(messages, agent.schemas, dict(agent.parameters))
    started = holder.around.clock.monotonic()
    try:
        model = holder.around.model_of(agent)
        (emit := holder.around.watch(holder.thread_id))(StatusLine(f"asking {model.name}"))
        work = model.reply(request, Speaker(emit) if agent.to_user else emit)
        reply = await holder.ask(
            seen.model(model, request, work) if (seen := holder.around.observe) else work
        )
    except (ModelError, ConfigurationError) as error:
        logger.warning("thread %s: the model could not be asked: %s", holder.thread_id, error)
        await holder.append(ModelFailed(state.step + 1, str(error), getattr(error, "attempts", 1)))
        return
    except (LeaseLost, StoreError):
        raise  # not the model's: of the log, which is read while it thinks
    except Exception as error:  # noqa: BLE001 - a user's own Model may raise anything; it fails the step
        logger.exception("thread %s: the model raised what it may not", holder.thread_id)
        await holder.append(ModelFailed(state.step + 1, error_text(error)))
        return
    if reply is None:
        return
    if agent.to_user:
        reply = spoken(reply)
    if len(reply.calls) > limits.MAX_CALLS_PER_REPLY:
        error_line = f"the reply has {len(reply.calls)} calls; at most {limits.MAX_CALLS_PER_REPLY} are taken"
        await holder.append(ModelFailed(state.step + 1, error_line))
        return
    event = ModelReplied(
        step=state.step + 1,
        seen_seq=seen_seq,
        text=clean(reply.text),
        reasoning=clean(reply.reasoning),
        calls=_plan(holder, reply),
        usage=reply.usage,
        model=reply.model,
        finish=reply.finish,
        duration_ms=round((holder.around.clock.monotonic() - started) * 1000),
        prompt=prompt if prompt != state.sent[0] else "",
        tools=tools if tools != state.sent[1] else "",
        parameters=parameters if parameters != state.sent[2] else "",
        extra=reply.extra,
    )
    await _record(holder, event)


async def _record(holder: Holder, event: ModelReplied) -> None:
    """The reply, and in the same commit what needs nothing from outside and follows from it."""
    try:
        # The usual end; a message that slipped in makes it refuse, and is answered.
        ended = not event.calls and holder.state.head_seq == event.seen_seq
        if ended and await holder.append(event, ThreadCompleted(event.text), conditional=True):
            return
        events = (event, *await start_reads(holder, event.calls))
        asks: tuple[Event, ...] = ()
        # Open calls are of a reply of whoever took the thread over meanwhile; the store refuses this one.
        if not holder.state.open and any(call.gated for call in event.calls):
            asks = questions_after(holder.state, events, holder.now_ms(), holder.local)
        await holder.append(*events, *asks)
    except InvalidInput as error:
        await holder.stop(frozenset(holder.running))
        holder.take_finished()
        await holder.append(ModelFailed(event.step, f"the reply cannot be stored: {error}"))


def _plan(holder: Holder, reply: Reply) -> tuple[Call, ...]:
    step = holder.state.step + 1
    last = len(reply.calls) - 1
    return tuple(
        plan(
            holder.agent.by_name,
            request,
            CallId(f"s{step:04d}c{index:03d}"),
            cut=reply.finish == "length" and index == last,
        )
        for index, request in enumerate(reply.calls)
    )


async def _sent(holder: Holder, instructions: str) -> tuple[str, ...]:
    """The digests of what goes out beside the history; bodies that are new here are stored first."""
    agent, known = holder.agent, holder.around.blobs
    keys = (f"prompt {instructions}", f"tools {agent.fingerprint}", f"parameters {agent.fingerprint}")
    digests: list[str] = []
    new: dict[str, bytes] = {}
    for key, body in zip(keys, (instructions, agent.schemas, agent.parameters), strict=True):
        digest = known.get(key)
        if digest is None:
            encoded = msgspec.json.encode(body, order="sorted")
            digest = hashlib.sha256(encoded).hexdigest()
            new[digest] = encoded
        digests.append(digest)
    if new:
        await holder.store.put_blobs(new)
        if len(known) > limits.MAX_KNOWN_BLOBS:
            known.clear()
        known.update(zip(keys, digests, strict=True))
    return tuple(digests)
