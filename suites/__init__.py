"""The tests that a subject is put to: ``pytest suites`` in a clone, ``pytest --pyargs specverify.suites`` from the wheel.

The wheel holds this folder as ``specverify.suites``; there is no other copy of it.
"""
