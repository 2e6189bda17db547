// See README.md: a DEALER of zeromq.js.
const { Dealer } = require("zeromq");
const lines = require("readline").createInterface({ input: process.stdin });

(async () => {
  const socket = new Dealer({ linger: 250 });
  socket.connect(process.argv[2]);
  for await (const line of lines) {
    const words = line.trim().split(" ");
    await socket.send(words.filter((word) => word !== "-").map((word) => Buffer.from(word, "hex")));
    if (words[0] !== "-") {
      const frames = await socket.receive();
      console.log(frames.map((frame) => frame.toString("hex")).join(" "));
    }
  }
  socket.close();
})();
