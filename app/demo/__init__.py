"""``ackgate demo``: the whole product at work in a temporary directory, told step by step.

``run`` starts and stops, ``story`` sends the requests and checks the answers, ``subscriber`` is the
WebSocket client, ``processes`` keeps the child processes, ``screen`` talks to the person.
"""
