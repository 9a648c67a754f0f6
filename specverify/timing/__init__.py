"""Does speculation pay on this machine? Measured speed beside the speed that acceptance and costs predict.

``specverify bench`` measures any decoder whose opened object has the attribute ``timing``, a
:class:`specverify.subjects.Timeable`. The layers: ``predict`` is arithmetic, ``opening`` finds the subject, ``measure``
runs it, ``record`` turns samples into the timing JSON, ``table`` prints that, ``attach`` puts it into a certificate.
"""
