"""The door for verifiers: its clients ask this server as they would ask their own."""
