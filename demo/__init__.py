"""``./dev demo``: real beats, workers and kills, judged by what the task bodies write down.

``command`` is the door, ``performance`` runs the play that ``scenario`` describes with the processes of
``children`` and ``servers``. ``app`` and ``users`` are the user's side; they write to ``log``, which
``facts`` reads. ``verdict``, ``timeline`` and ``view`` turn facts into numbers and pictures.
"""
