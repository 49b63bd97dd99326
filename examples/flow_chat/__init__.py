"""A chat agent out of Jobs and handlers: it streams, calls tools, and goes round and round.

    python -m examples.flow_chat                        # offline: a small script plays the model
    PROVIDER_URL=https://.../v1 PROVIDER_MODEL=... PROVIDER_API_KEY=... python -m examples.flow_chat

One round is a tree. It has ended when both branches of the fork have, however many times a tool's result
was sent back to the model in between; then a callback starts the next round as a new root.

    Commander
    └─ ChatJob                    one round: ask the model
       └─ ResponseJob             its reply
          └─ handle_response      split the stream
             ├─ user_handler      text for the user, while it arrives
             └─ function_call_handler
                └─ ResponseJob    the reply to the tools' results, and so on
"""
