// Which transaction replaced which: trees whose root is the last replacement, and whose branches are what
// it drove out.

const MAX_TREES = 60;
const MAX_NODES = 40; // of one tree

export class Replacements {
  #nodes = new Map(); // by id: { id, package, fee, vsize, t, by, victims, tree, left }
  #trees = new Map(); // by key, longest unchanged first: { key, root, nodes, trimmed, t }
  #changed = new Set();
  #gone = new Set();
  #key = 0;

  /** A replacement: { victim, fee, vsize, by, package, by_fee, by_vsize, t }, t in microseconds. */
  add({ victim, fee, vsize, by, package: isPackage, by_fee, by_vsize, t }) {
    const winner = this.#nodes.get(by) ?? this.#begin({ id: by, package: isPackage, fee: by_fee, vsize: by_vsize, t });
    const { tree } = winner;
    const known = this.#nodes.get(victim);
    // What comes back after it was replaced may be replaced again; a tree has no circle, so the first stands.
    if (known && (known.tree === tree || known.by !== null)) return;
    if (known) this.#merge(known.tree, tree);
    const node = known ?? this.#node({ id: victim, package: false, fee, vsize, t }, tree);
    node.by = by;
    winner.victims.push(victim);
    this.#touch(tree, t);
    this.#trim(tree);
  }

  /** A transaction entered or left the mempool. left: null, or { reason, height, t }. */
  mark(id, left) {
    const node = this.#nodes.get(id);
    if (!node) return;
    node.left = left;
    if (node.tree.root === id) this.#changed.add(node.tree);
  }

  /** The key of the tree that a transaction is in; null: in none. */
  treeOf(id) {
    return this.#nodes.get(id)?.tree.key ?? null;
  }

  tree(key) {
    const tree = this.#trees.get(key);
    return tree ? this.#told(tree) : null;
  }

  /** Latest first. */
  all() {
    return [...this.#trees.values()].map((tree) => this.#told(tree)).reverse();
  }

  changes() {
    if (!this.#changed.size && !this.#gone.size) return null;
    const trees = [...this.#changed].map((tree) => this.#told(tree));
    const gone = [...this.#gone];
    this.#changed.clear();
    this.#gone.clear();
    return { trees, gone };
  }

  #told({ key, root, trimmed, t, nodes }) {
    return { key, root, trimmed, t, nodes: [...nodes.values()].map(({ id, package: isPackage, fee, vsize, t: at, by, left }) =>
      ({ id, package: isPackage, fee, vsize, t: at, by, left })) };
  }

  #begin(root) {
    const tree = { key: ++this.#key, root: root.id, trimmed: 0, t: root.t, nodes: new Map() };
    this.#trees.set(tree.key, tree);
    if (this.#trees.size > MAX_TREES) this.#drop(this.#trees.values().next().value);
    return this.#node(root, tree);
  }

  #node(parts, tree) {
    const node = { ...parts, by: null, victims: [], tree, left: null };
    this.#nodes.set(node.id, node);
    tree.nodes.set(node.id, node);
    return node;
  }

  #merge(from, into) {
    for (const node of from.nodes.values()) {
      node.tree = into;
      into.nodes.set(node.id, node);
    }
    into.trimmed += from.trimmed;
    from.nodes = new Map();
    this.#drop(from);
  }

  #drop(tree) {
    for (const id of tree.nodes.keys()) this.#nodes.delete(id);
    this.#trees.delete(tree.key);
    this.#changed.delete(tree);
    this.#gone.add(tree.key);
  }

  #touch(tree, t) {
    tree.t = t;
    this.#trees.delete(tree.key);
    this.#trees.set(tree.key, tree);
    this.#changed.add(tree);
  }

  /** The oldest leaves go first. */
  #trim(tree) {
    while (tree.nodes.size > MAX_NODES) {
      let oldest = null;
      for (const node of tree.nodes.values())
        if (!node.victims.length && node.by !== null && (!oldest || node.t < oldest.t)) oldest = node;
      const winner = this.#nodes.get(oldest.by);
      winner.victims.splice(winner.victims.indexOf(oldest.id), 1);
      tree.nodes.delete(oldest.id);
      this.#nodes.delete(oldest.id);
      tree.trimmed++;
    }
  }
}
