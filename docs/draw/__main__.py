"""``python -m docs.draw``, in a checkout: renew what is drawn in the documentation."""

from . import DOCS, renew

if __name__ == "__main__":
    for path in renew():
        print(path.relative_to(DOCS.parent))
