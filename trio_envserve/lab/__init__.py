"""The laboratory: how this project is attacked, judged and measured, on
:mod:`trio_envserve.retrylab`."""
