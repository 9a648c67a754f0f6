"""Released decoders as subjects; each module needs its own package and is imported only when it is named."""
