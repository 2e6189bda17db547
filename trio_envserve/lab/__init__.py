"""The laboratory: how this project is attacked, judged and measured, for its developers."""
