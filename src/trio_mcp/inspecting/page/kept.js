// The latest items of a stream of numbered items.

import { draw } from "./view.js";

const MOST_KEPT = 1000;

export class Kept {
  all = [];

  /** Store an item. After the event stream broke, stored items arrive again. */
  add = (one) => {
    if (!this.all.length || this.all.at(-1).n < one.n) this.all.push(one);
    if (this.all.length > MOST_KEPT) this.all.splice(0, this.all.length - MOST_KEPT);
    draw();
  };

  forget() {
    this.all.length = 0;
  }

  /** The items for which `fits` is true, the last first, up to a number. */
  latest(fits, most) {
    return this.all.filter(fits).slice(-most).reverse();
  }
}
