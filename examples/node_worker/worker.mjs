// An environment in JavaScript: how many words does a text have?  Its model is a stand-in
// that counts spaces, so it is wrong about texts with two of them in a row.
import { setTimeout as sleep } from "node:timers/promises";
import { serve } from "./envserve.mjs";

let pause_s = 0;

serve({
  name: "count-words",

  setup(args) {
    pause_s = args.pause_s ?? 0;
  },

  async rollout(input, { signal }) {
    const text = input.text;
    if (typeof text !== "string") throw new TypeError("the input has no text");
    // As a model would take its time.
    await sleep(1000 * (input.pause_s ?? pause_s), undefined, { signal });
    const guess = text.split(" ").length;
    const right = text.split(/\s+/).filter((word) => word).length;
    return { reward: guess === right ? 1.0 : 0.0, completion: String(guess), state: {} };
  },
});
