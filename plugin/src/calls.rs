//! The chain of calls that led to an executed instruction: a tree of call sites, and the node of each stack frame.
//!
//! A call stores its return address, and a return loads it. Both accesses give the stack pointer. So the address of the
//! return address identifies a frame, and also its stack. Frames below the stack pointer are no longer valid. So
//! switches between stacks, exceptions and jumps out of many frames need no special handling.

use std::collections::{BTreeMap, HashMap};

/// The root node, without a caller: the kernel's entry.
pub const ROOT: u32 = 0;

/// A distance in bytes, larger than any frame and smaller than any stack. A frame further above belongs to another
/// stack.
const REACH: u64 = 8 << 10;

/// A call: the caller's node, and the call site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// The caller's node.
    pub parent: u32,
    /// The call instruction.
    pub site: u64,
}

/// The tree of calls, and the frames of all stacks.
#[derive(Debug, Default)]
pub struct Calls {
    /// All nodes but the root. Node n+1 is at index n.
    nodes: Vec<Call>,
    known: HashMap<Call, u32>,
    /// The node of each frame, by the address of its return address.
    frames: BTreeMap<u64, u32>,
}

impl Calls {
    /// Handles a call: the instruction at `site` stores a return address at `at`. Returns the node of the called
    /// function. `entered` says whether this is the first call since the kernel was entered. Then the stack has no
    /// other frame.
    pub fn call(&mut self, site: u64, at: u64, entered: bool) -> u32 {
        self.forget(at);
        let parent = if entered { ROOT } else { self.above(at) };
        let call = Call { parent, site };
        let next = self.nodes.len() as u32 + 1;
        let node = *self.known.entry(call).or_insert(next);
        if node == next {
            self.nodes.push(call);
        }
        self.frames.insert(at, node);
        node
    }

    /// Handles a return that loads its address from `at`. Returns the node that it leads to.
    pub fn ret(&mut self, at: u64) -> u32 {
        self.forget(at);
        self.above(at)
    }

    /// All calls. Node n+1 is at index n.
    pub fn nodes(&self) -> &[Call] {
        &self.nodes
    }

    /// Removes the frames at `at` and below.
    fn forget(&mut self, at: u64) {
        while let Some((&below, _)) = self.frames.range(at.saturating_sub(REACH)..=at).next_back() {
            self.frames.remove(&below);
        }
    }

    /// Returns the node of the nearest frame above `at`, or the root if there is none.
    fn above(&self, at: u64) -> u32 {
        self.frames.range(at + 1..at.saturating_add(REACH)).next().map_or(ROOT, |(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_from_the_same_place_by_the_same_way_are_one_node() {
        let mut calls = Calls::default();
        let outer = calls.call(10, 0x9000, true);
        let inner = calls.call(20, 0x8f00, false);
        assert_eq!((calls.ret(0x8f00), calls.ret(0x9000)), (outer, ROOT));
        assert_eq!((calls.call(10, 0x9000, true), calls.call(20, 0x8f00, false)), (outer, inner));
        assert_eq!(calls.nodes(), [Call { parent: ROOT, site: 10 }, Call { parent: outer, site: 20 }]);
        assert_ne!(calls.call(20, 0x8e00, false), inner);
    }

    #[test]
    fn stacks_are_told_apart_and_gone_on_with() {
        let mut calls = Calls::default();
        let one = calls.call(10, 0x9000, true);
        let two = calls.call(11, 0x2_9000, true);
        // A switch of stacks loads a return address from the other stack.
        let deep = calls.call(20, 0x2_8f00, false);
        assert_eq!(calls.nodes()[deep as usize - 1].parent, two);
        calls.call(30, 0x8f00, false);
        assert_eq!(calls.ret(0x2_8f00), two);
        assert_eq!(calls.ret(0x8f00), one);
    }

    #[test]
    fn frames_that_were_left_by_a_jump_are_forgotten() {
        let mut calls = Calls::default();
        calls.call(10, 0x9000, true);
        calls.call(20, 0x8f00, false);
        calls.call(30, 0x8e00, false);
        let again = calls.call(40, 0x8f80, false);
        assert_eq!(calls.nodes()[again as usize - 1].parent, 1);
        // The kernel is entered again, so older frames of the stack do not count.
        let anew = calls.call(50, 0x8f00, true);
        assert_eq!(calls.nodes()[anew as usize - 1].parent, ROOT);
    }
}
