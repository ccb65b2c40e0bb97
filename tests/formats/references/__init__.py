"""References of kerchunk: both forms of them, and where they may lead."""
