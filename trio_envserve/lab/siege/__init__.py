"""The siege: raw sockets attack a server and a client, and a judge looks at what gave way."""
