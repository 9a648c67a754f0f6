"""Does speculation pay on this machine? Measured speed beside the speed that acceptance and costs predict.

``specverify bench`` measures any decoder: by its ``timing``, a :class:`specverify.subjects.Timeable`; over models supplied
here where it has a ``build``; else as it generates (docs/timing.md). The layers: ``predict`` and ``exact`` are arithmetic;
``opening`` finds out how a subject can be timed, with ``supplied`` and ``generating`` for those without ``timing``; ``clocks``
time a call, ``phases`` and ``measure`` decide what is called; ``costs`` and ``record`` turn samples into the timing JSON,
``sweeps`` and ``memory`` add to it; ``table`` prints it, ``exported`` writes it, ``compare`` holds it against an earlier one,
``attach`` puts it into a certificate.
"""
