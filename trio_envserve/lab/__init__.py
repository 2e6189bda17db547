"""The laboratory: how this project is attacked, judged and measured, for its developers;
and, in :mod:`.protocols`, a protocol of somebody else's."""
