"""A pytest plugin: the timing suite times scripted decoders by their own clock, and all others by the wall."""

import scripted

from specverify.timing import measure

measure.WallClock = scripted.opened_clock
