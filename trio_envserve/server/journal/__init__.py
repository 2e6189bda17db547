"""The journal: what must be safe before it is acted on, in a folder.

Theory of operation
-------------------
The core decides what is recorded and what waits for it (:mod:`trio_envserve.core.journal`);
here the records are made safe.  A folder has

==================== ====================================================================
``journal.db``       SQLite, with its files ``-wal`` and ``-shm``: a row for each record
``bodies/ROW``       bodies too large for a row, each safe before its row is
``safe``             how many records there have ever been, written after each commit
``server.lock``      held by the one process that uses the folder
``epochs.lock``      held by it and by its workers: who gets it knows that they are dead
``damaged-N``        what a repair has put aside
``../.NAME.journal`` beside the folder: ``safe`` and the locks once more
==================== ====================================================================

A commit is a group of records.  The rows of a generation are removed when it is closed, in
the same commit.  Each row has a sum of its own; the row ``state`` has how many records there
have ever been and the exclusive or of all sums, so a row that is changed, missing or added
is seen.  ``safe`` is never ahead of what was committed, so commits that are missing (SQLite
leaves out what is cut off, without a word) are seen, too.

:mod:`.folder` says whether a folder may be used, :mod:`.store` writes, :mod:`.reading` reads
and says what is damaged, :mod:`.repair` keeps what can be proven, and :mod:`.writer` has the
thread.
"""

from .writer import OpenJournal, open_journal

__all__ = ["OpenJournal", "open_journal"]
