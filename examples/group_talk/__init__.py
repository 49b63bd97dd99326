"""Several roles talk, and whoever asks first gets the floor.

    python -m examples.group_talk                       # offline: a small script plays the roles
    PROVIDER_URL=https://.../v1 PROVIDER_MODEL=... PROVIDER_API_KEY=... python -m examples.group_talk

Nobody plans who speaks when. Each speech goes to all roles at once; each role says whether it wants the
floor; the first that does gets it, and what it says is the next speech.

    Commander
    └─ GroupTalk                  who is there, who is speaking, how many speeches are left
       └─ TalkToAll               one speech, told to everybody
          └─ collect              one handler for each role, side by side
             ├─ listen (Ada)      does she want the floor?
             ├─ listen (Basil)
             └─ listen (Cleo)     the first that does speaks: the next TalkToAll, under GroupTalk
"""
