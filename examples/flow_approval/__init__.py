"""A Job that starts a durable thread, waits for a person's approval, and goes on; also after a restart.

    python -m examples.flow_approval 17                    # asks at the terminal; without one, it leaves
    python -m examples.flow_approval 17                    # finds its thread again, and asks again
    python -m examples.flow_approval 17 --decide approve   # or reject: decides without asking

The tree of Jobs lives in this process and dies with it. What must not be lost, the agent's conversation
and the decision, is a thread in the database. Its id follows from the order's number, so that the same Job
in a new process starts nothing twice: it finds the thread where it was left, waiting or done.

    Commander
    └─ RefundJob                 start the thread, or find it
       └─ wait_for_approval      a handler: other Jobs go on meanwhile
          └─ LetterJob           what comes after the decision

Set PROVIDER_URL, PROVIDER_MODEL and PROVIDER_API_KEY to let a real model write; a script does it otherwise.
"""
