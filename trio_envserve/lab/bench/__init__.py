"""The benchmark: this project, a plain socket loop and a peer, side by side."""
