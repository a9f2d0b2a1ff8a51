// What is kept of a stream of numbered things: the last ones.

import { draw } from "./view.js";

const MOST_KEPT = 1000;

export class Kept {
  all = [];

  /** Keep one more; what is kept already is told again when the stream has broken. */
  add = (one) => {
    if (!this.all.length || this.all.at(-1).n < one.n) this.all.push(one);
    if (this.all.length > MOST_KEPT) this.all.splice(0, this.all.length - MOST_KEPT);
    draw();
  };

  forget() {
    this.all.length = 0;
  }

  /** Those for which `fits` holds, the last first, up to a number. */
  latest(fits, most) {
    return this.all.filter(fits).slice(-most).reverse();
  }
}
