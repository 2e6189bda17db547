"""A file of results as a page: one file of HTML that opens without a network.

Theory of operation
-------------------
The results are read twice, record by record, since all of them may be larger than memory.
The first time :mod:`.survey` keeps what the tables and the charts show; the second time
:mod:`.writing` writes each rollout's text into the page as it comes, in an element of its
own.  A browser reads such an element when its rollout is opened, or searched.  What of a
text goes into the page, :mod:`.details` decides.
"""
