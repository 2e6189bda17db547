"""Rollouts for trainers: each module is named in a line of its trainer's configuration.

Theory of operation
-------------------
:mod:`.samples` makes of outcomes what every trainer needs: samples with the ids of their
group, rollout and segment, a baseline over rollouts, and a word for what is masked.  A
module for each trainer gives them that trainer's form, and imports the trainer when it is
itself imported; importing this package imports none of them.
"""
