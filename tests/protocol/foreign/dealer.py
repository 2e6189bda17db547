"""See README.md: a plain DEALER of pyzmq."""

import sys

import zmq

socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
socket.set(zmq.LINGER, 250)
socket.connect(sys.argv[1])
for line in sys.stdin:
    words = line.split()
    wait = words[0] != "-"
    socket.send_multipart([bytes.fromhex(word) for word in words if word != "-"])
    if wait:
        print(*(frame.hex() for frame in socket.recv_multipart()), flush=True)
socket.close()
zmq.Context.instance().term()
