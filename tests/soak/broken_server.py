"""The soak's server with consent and allowance left out: whatever a worker ran when
it died is run again.  A program, run by test_soak.py.
"""

from trio_envserve.core.dedup import DedupCache
from trio_envserve.lab.demo import server as demo_server

DedupCache.may_rerun = lambda self, entry: True  # type: ignore[method-assign]

if __name__ == "__main__":
    demo_server.main()
