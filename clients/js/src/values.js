// What msgpack can say and JavaScript has no word for.

/** A value of one of msgpack's extension types; the contract has none. */
export class Extension {
  constructor(type, data) {
    this.type = type;
    this.data = data;
  }
}

/** Symbol of an array key, value, key, value ... : what a JavaScript object cannot keep of a map, which
 * is two equal keys and the place of a key that looks like an index. */
export const PAIRS = Symbol("pairs");
