//! An ordered tree of intervals, whose links are fields of its members (an intrusive tree). It finds the members that
//! cover a page without a visit to other members.
//!
//! The tree is a treap: a search tree by (start, address), and heap-ordered by a priority, which is a hash of the
//! address. So its expected depth is logarithmic without rebalancing or stored priorities. Each member records the
//! largest end in its subtree. Insert, remove and a step to the next overlap are O(log n) expected. The tree allocates
//! nothing, and its owner guards it by a lock.
//!
//! # Recently linked members
//! Each member has the *stamp* of its linking, and stamps rise. While a walk is registered (`Tree::note_walk`), each
//! member also records the latest stamp in its subtree. So the walk finds the members that were linked after it began,
//! without a visit to other members (`Tree::next_newer`). While no walk is registered, a linking does not write the
//! stamps of ancestors.

use crate::check::Broken;
use crate::mutant::{Mutant, mutant};
use core::ptr;
use quire_sync::Shared;

/// The links of a member in its tree. Guarded by the tree's owner.
pub struct Links<T> {
    left: *mut T,
    right: *mut T,
    parent: *mut T,
    /// The largest end in this member's subtree.
    max: u64,
}

impl<T> Links<T> {
    /// Links of a member that is alone in its tree, or in no tree.
    pub(crate) const fn new(end: u64) -> Self {
        Links { left: ptr::null_mut(), right: ptr::null_mut(), parent: ptr::null_mut(), max: end }
    }
}

/// The time of a member's linking, as a stamp. Guarded by the tree's owner.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    stamp: u64,
    /// The latest stamp in this member's subtree. Stamps of members that were linked while no walk was registered
    /// (`Tree::note_walk`) may be missing.
    newest: u64,
}

impl Age {
    /// The age of a tree's first member, or of a member that is in no tree.
    pub(crate) const fn new() -> Self {
        Age { stamp: 0, newest: 0 }
    }
}

/// A member of a [`Tree`]: a value with a fixed interval of keys.
///
/// # Safety
/// `links` and `age` return the same cells each time, `start` and `end` never change, and `start < end`.
pub unsafe trait Interval: Sized {
    /// The member's links in its tree.
    fn links(&self) -> &Shared<Links<Self>>;
    /// The member's stamps.
    fn age(&self) -> &Shared<Age>;
    /// The first key of the interval.
    fn start(&self) -> u64;
    /// One past the last key of the interval.
    fn end(&self) -> u64;
}

/// A member's place in the tree's order: its start and its address.
pub type TreePlace = (u64, usize);

/// A tree of members. The owner of the tree keeps the members alive.
pub struct Tree<T> {
    root: *mut T,
    /// The number of registered walks. A registered walk releases the tree's lock and continues later.
    walks: u32,
}

/// The result of [`Tree::next_newer`].
#[derive(Debug)]
pub(crate) enum Newer<'t, T> {
    Member(&'t T),
    /// No wanted member up to this place. The search can continue after it.
    NotYet(TreePlace),
    /// No wanted member is left.
    End,
}

// SAFETY: the members are reached only through the tree, whose owner guards it.
unsafe impl<T: Send + Sync> Send for Tree<T> {}

impl<T: Interval> Tree<T> {
    /// A tree with no member, or with a single member that is in no other tree.
    pub(crate) const fn new(root: *mut T) -> Self {
        Tree { root, walks: 0 }
    }

    /// Whether the tree has no member.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_null()
    }

    /// Registers a walk. From now on [`next_newer`](Self::next_newer) finds the members that are linked later.
    pub(crate) fn note_walk(&mut self) {
        self.walks += 1;
    }

    /// Ends one walk that [`note_walk`](Self::note_walk) registered.
    pub(crate) fn forget_walk(&mut self) {
        self.walks -= 1;
    }

    /// Links `member` into the tree. `stamp` is larger than the stamp of each earlier linking.
    ///
    /// # Safety
    /// `member` is in no tree, and stays alive and in place until it is removed.
    pub(crate) unsafe fn insert(&mut self, member: *mut T, stamp: u64) {
        let noted = self.walks != 0 && !mutant(Mutant::LinkingUnnoted);
        // SAFETY: members are alive while they are in the tree, and links are guarded by the tree.
        unsafe {
            *change(member) = Links::new((*member).end());
            *change_age(member) = Age { stamp, newest: if mutant(Mutant::LinkingUnnoted) { 0 } else { stamp } };
            let (own, end) = (place(member), (*member).end());
            let (mut parent, mut is_left) = (ptr::null_mut(), false);
            let mut at = self.root;
            while !at.is_null() {
                parent = at;
                // The store is skipped where possible, so that the cache line stays shared. Most new members end before
                // the largest end of each subtree above them.
                if links(at).max < end {
                    change(at).max = end;
                }
                if noted {
                    change_age(at).newest = stamp;
                }
                is_left = is_before(own, place(at));
                at = if is_left { links(at).left } else { links(at).right };
            }
            if parent.is_null() {
                self.root = member;
                return;
            }
            change(member).parent = parent;
            if is_left {
                change(parent).left = member;
            } else {
                change(parent).right = member;
            }
            let own = priority(member);
            while !parent.is_null() && priority(parent) < own {
                self.rotate_up(member);
                parent = links(member).parent;
            }
        }
    }

    /// Removes `member` from the tree.
    ///
    /// # Safety
    /// `member` is in this tree.
    pub(crate) unsafe fn remove(&mut self, member: *mut T) {
        // SAFETY: `member` is in this tree, whose members are alive. `&mut self` excludes other accesses to the links.
        unsafe {
            let &Links { mut left, mut right, parent, .. } = links(member);
            // The two subtrees of `member` are merged and take its place. Each step links the root with the higher
            // priority, and continues with the child of that root that must be merged with the other subtree.
            let mut above = parent;
            let mut is_left = !parent.is_null() && links(parent).left == member;
            loop {
                let takes_left =
                    if left.is_null() || right.is_null() { right.is_null() } else { priority(left) > priority(right) };
                let next = if takes_left { left } else { right };
                if above.is_null() {
                    self.root = next;
                } else if is_left {
                    change(above).left = next;
                } else {
                    change(above).right = next;
                }
                if !next.is_null() {
                    change(next).parent = above;
                }
                if left.is_null() || right.is_null() {
                    break;
                }
                above = next;
                is_left = !takes_left;
                if takes_left {
                    left = links(next).right;
                } else {
                    right = links(next).left;
                }
            }
            *change(member) = Links::new((*member).end());
            // The merged members have new subtrees, so the largest ends and latest stamps that they record are computed
            // again.
            let mut at = above;
            while at != parent {
                refresh(at);
                if self.walks != 0 && !mutant(Mutant::LinkingUnnoted) {
                    refresh_age(at);
                }
                at = links(at).parent;
            }
            // Once the maximum of a member is unchanged, the maxima of its ancestors are unchanged too.
            while !at.is_null() && refresh(at) {
                at = links(at).parent;
            }
        }
    }

    /// Rotates `member` above its parent.
    ///
    /// # Safety
    /// `member` is in this tree, and has a parent.
    unsafe fn rotate_up(&mut self, member: *mut T) {
        // SAFETY: `member` and its parent are in this tree and alive, and `&mut self` guards the links.
        unsafe {
            let parent = links(member).parent;
            let grand = links(parent).parent;
            if links(parent).left == member {
                let inner = links(member).right;
                change(parent).left = inner;
                if !inner.is_null() {
                    change(inner).parent = parent;
                }
                change(member).right = parent;
            } else {
                let inner = links(member).left;
                change(parent).right = inner;
                if !inner.is_null() {
                    change(inner).parent = parent;
                }
                change(member).left = parent;
            }
            change(parent).parent = member;
            change(member).parent = grand;
            if grand.is_null() {
                self.root = member;
            } else if links(grand).left == parent {
                change(grand).left = member;
            } else {
                change(grand).right = member;
            }
            // After the rotation, the subtree of `member` is the subtree that its parent had.
            change(member).max = links(parent).max;
            refresh(parent);
            if self.walks != 0 && !mutant(Mutant::LinkingUnnoted) {
                refresh_age(parent);
                refresh_age(member);
            }
        }
    }

    /// The first member, in the tree's order, that overlaps `start..end` and comes after `after`.
    pub(crate) fn next_overlap(&self, start: u64, end: u64, after: Option<TreePlace>) -> Option<&T> {
        // SAFETY: members are alive while they are in the tree.
        unsafe { find(self.root, start, end, after).as_ref() }
    }

    /// Finds the next member after `member` like [`Tree::next_overlap`], but starts at the node of `member` instead of
    /// the root. A walk through all overlapping members visits each link twice.
    ///
    /// # Safety
    /// `member` is in this tree.
    pub(crate) unsafe fn next_overlap_from(&self, member: &T, start: u64, end: u64) -> Option<&T> {
        let mut at = ptr::from_ref(member).cast_mut();
        // SAFETY: members are alive while they are in the tree.
        unsafe {
            loop {
                let found = find(links(at).right, start, end, None);
                if !found.is_null() {
                    return found.as_ref();
                }
                // Climbs to the next member in order: the first ancestor that is reached from its left child.
                loop {
                    let below = at;
                    at = links(at).parent;
                    if at.is_null() {
                        return None;
                    }
                    if links(at).left == below {
                        break;
                    }
                }
                if (*at).start() >= end {
                    return None;
                }
                if (*at).end() > start {
                    return at.as_ref();
                }
            }
        }
    }

    /// The first member after `after`, in the tree's order, that overlaps `start..end` and has the stamp `since` or a
    /// later stamp. Finds only members that were linked while a walk was registered. Each other member that the search
    /// passes on the way lowers `steps` by one. The search stops when `steps` is 0. In a tree of *n* members, the
    /// search passes about log(*n*) other members for each member with the stamp `since` or a later one.
    pub(crate) fn next_newer(
        &self,
        start: u64,
        end: u64,
        since: u64,
        after: Option<TreePlace>,
        steps: &mut u32,
    ) -> Newer<'_, T> {
        // SAFETY: members are alive while they are in the tree.
        unsafe { find_newer(self.root, &Wanted { start, end, since, after }, steps) }
    }

    /// The member at `place`.
    pub(crate) fn at(&self, place: TreePlace) -> Option<&T> {
        let mut at = self.root;
        // SAFETY: members are alive while they are in the tree.
        while let Some(t) = unsafe { at.as_ref() } {
            let here = Self::place(t);
            if here == place {
                return Some(t);
            }
            // SAFETY: `at` is a member of this tree, and nothing changes links while `self` is borrowed.
            let l = unsafe { links(at) };
            at = if is_before(place, here) { l.left } else { l.right };
        }
        None
    }

    /// The smallest start of a member that is larger than `key`. `None` if no member starts after `key`.
    pub(crate) fn next_start(&self, key: u64) -> Option<u64> {
        let mut best = None;
        let mut at = self.root;
        // SAFETY: `at` is null, the root or a member's link, and members stay alive while they are in the tree.
        while let Some(t) = unsafe { at.as_ref() } {
            // SAFETY: `at` is a member of this tree, and nothing changes links while `self` is borrowed.
            let l = unsafe { links(at) };
            if t.start() > key {
                best = Some(t.start());
                at = l.left;
            } else {
                at = l.right;
            }
        }
        best
    }

    /// A member's place in the order, as [`Tree::next_overlap`] takes it.
    pub(crate) fn place(member: &T) -> TreePlace {
        (member.start(), ptr::from_ref(member).addr())
    }

    /// Whether the tree finds `member` at its place in the order.
    pub(crate) fn contains(&self, member: &T) -> bool {
        self.at(Self::place(member)).is_some()
    }

    /// Checks links, order, heap order and largest ends, and calls `each` with each member. Returns the number of
    /// members. Takes O(n) time, and recurses as deep as the tree.
    pub(crate) fn check(&self, each: &mut dyn FnMut(&T) -> Result<(), Broken>) -> Result<u64, Broken> {
        let mut seen = Seen { count: 0, last: None, each };
        // SAFETY: members are alive while they are in the tree.
        unsafe { check(self.root, ptr::null_mut(), &mut seen)? };
        Ok(seen.count)
    }
}

/// The state of a running check.
struct Seen<'a, T> {
    count: u64,
    last: Option<TreePlace>,
    each: &'a mut dyn FnMut(&T) -> Result<(), Broken>,
}

/// Access to private parts for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<T: Interval> Tree<T> {
    /// Whether a walk is registered.
    pub fn is_walked(&self) -> bool {
        self.walks != 0
    }

    /// Changes the recorded largest end of `member`'s subtree to a wrong value.
    ///
    /// # Safety
    /// `member` is in this tree.
    pub unsafe fn corrupt_max(&mut self, member: *mut T) {
        // SAFETY: by this function's contract.
        unsafe { change(member) }.max += 1;
    }
}

/// The links of a member, for reading.
///
/// # Safety
/// The member is alive, and as long as the result is used, nothing changes its tree and no reference from [`change`] is
/// in use.
#[cfg_attr(recording, track_caller)]
unsafe fn links<'a, T: Interval + 'a>(member: *mut T) -> &'a Links<T> {
    // SAFETY: by this function's contract, the member is alive, and no reference to its links from `change` is in use.
    unsafe { (*member).links().get() }
}

/// The links of a member, for writing.
///
/// # Safety
/// The member is alive, the caller has exclusive access to its tree, and no other reference to its links is in use.
#[cfg_attr(recording, track_caller)]
unsafe fn change<'a, T: Interval + 'a>(member: *mut T) -> &'a mut Links<T> {
    // SAFETY: by this function's contract, the member is alive, and no other reference to its links is in use.
    unsafe { (*member).links().get_mut() }
}

/// The age of a member, for reading.
///
/// # Safety
/// The rules of [`links`] hold.
unsafe fn age<'a, T: Interval + 'a>(member: *mut T) -> &'a Age {
    // SAFETY: by this function's contract, the member is alive, and no reference to its age from `change_age` is in
    // use.
    unsafe { (*member).age().get() }
}

/// The age of a member, for writing.
///
/// # Safety
/// The rules of [`change`] hold.
unsafe fn change_age<'a, T: Interval + 'a>(member: *mut T) -> &'a mut Age {
    // SAFETY: by this function's contract, the member is alive, and no other reference to its age is in use.
    unsafe { (*member).age().get_mut() }
}

/// A member's place in the order.
///
/// # Safety
/// The member is alive.
unsafe fn place<T: Interval>(member: *mut T) -> TreePlace {
    // SAFETY: the member is alive, by this function's contract, and its start never changes.
    unsafe { ((*member).start(), member.addr()) }
}

/// Whether place `a` is before place `b`. The derived comparison of pairs compiles to more instructions.
#[inline(always)]
fn is_before(a: TreePlace, b: TreePlace) -> bool {
    a.0 < b.0 || a.0 == b.0 && a.1 < b.1
}

/// The heap priority of a member: a mix of the bits of its address (the finaliser of SplitMix64, Steele et al. 2014).
fn priority<T>(member: *mut T) -> u64 {
    let mut z = member.addr() as u64;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Recomputes the largest end in the subtree of `member`. Returns whether it has changed.
///
/// # Safety
/// `member` is in a tree to which the caller has exclusive access.
unsafe fn refresh<T: Interval>(member: *mut T) -> bool {
    // SAFETY: the caller has exclusive access to the tree. The children of a member are members, hence alive.
    unsafe {
        let l = links(member);
        let mut max = (*member).end();
        for child in [l.left, l.right] {
            if !child.is_null() {
                max = max.max(links(child).max);
            }
        }
        let other = max != l.max;
        if other {
            change(member).max = max;
        }
        other
    }
}

/// Recomputes the latest stamp in the subtree of `member`.
///
/// # Safety
/// `member` is in a tree to which the caller has exclusive access.
unsafe fn refresh_age<T: Interval>(member: *mut T) {
    // SAFETY: the caller has exclusive access to the tree. The children of a member are members, hence alive.
    unsafe {
        let l = links(member);
        let mut newest = age(member).stamp;
        for child in [l.left, l.right] {
            if !child.is_null() {
                newest = newest.max(age(child).newest);
            }
        }
        change_age(member).newest = newest;
    }
}

/// The condition of a search by [`find_newer`].
struct Wanted {
    start: u64,
    end: u64,
    since: u64,
    after: Option<TreePlace>,
}

/// Searches like [`Tree::next_newer`], but only in the subtree of `at`.
///
/// # Safety
/// `at` is null, or in a tree that the caller has borrowed.
unsafe fn find_newer<'t, T: Interval>(at: *mut T, wanted: &Wanted, steps: &mut u32) -> Newer<'t, T> {
    let mut at = at;
    // SAFETY: the caller has borrowed the tree: its members stay alive and no link changes, so links lead to members.
    unsafe {
        while !at.is_null() && age(at).newest >= wanted.since && links(at).max > wanted.start {
            let l = links(at);
            if wanted.after.is_none_or(|a| place(at) > a) {
                match find_newer(l.left, wanted, steps) {
                    Newer::End => {}
                    found => return found,
                }
                if (*at).start() >= wanted.end {
                    return Newer::End;
                }
                if (*at).end() > wanted.start && age(at).stamp >= wanted.since {
                    return Newer::Member(&*at);
                }
                *steps = steps.saturating_sub(1);
                if *steps == 0 {
                    return Newer::NotYet(place(at));
                }
            }
            at = l.right;
        }
    }
    Newer::End
}

/// The first member in the subtree of `at`, in the tree's order, that overlaps `start..end` and comes after `after`.
/// Null if there is none. The recursion is as deep as the tree: about 2 ln n calls.
///
/// # Safety
/// `at` is null or in a tree that the caller has borrowed.
unsafe fn find<T: Interval>(at: *mut T, start: u64, end: u64, after: Option<TreePlace>) -> *mut T {
    let mut at = at;
    // SAFETY: the caller has borrowed the tree: its members stay alive and no link changes, so links lead to members.
    unsafe {
        while !at.is_null() && links(at).max > start {
            let l = links(at);
            if after.is_none_or(|a| is_before(a, place(at))) {
                // Mostly the left subtree has no member that ends after `start`. This test then saves the recursive
                // call.
                if !l.left.is_null() && links(l.left).max > start {
                    let found = find(l.left, start, end, after);
                    if !found.is_null() {
                        return found;
                    }
                }
                if (*at).start() >= end {
                    return ptr::null_mut();
                }
                if (*at).end() > start {
                    return at;
                }
            }
            at = l.right;
        }
    }
    ptr::null_mut()
}

/// Checks the members in the subtree of `at`, in order. Returns the largest end among them, or 0. The check fails at a
/// member whose parent link is wrong, so it ends even if links form a circle.
///
/// # Safety
/// `at` is null or in a tree that the caller has borrowed.
unsafe fn check<T: Interval>(at: *mut T, parent: *mut T, seen: &mut Seen<'_, T>) -> Result<u64, Broken> {
    // SAFETY: `at` is null or a member of the tree that the caller has borrowed, and members are alive.
    let Some(member) = (unsafe { at.as_ref() }) else { return Ok(0) };
    // SAFETY: `at` is a member, its links lead to members or are null, and nothing changes them while the tree is
    // borrowed.
    unsafe {
        let (left, right, up, max) = {
            let l = links(at);
            (l.left, l.right, l.parent, l.max)
        };
        if up != parent {
            return Err(Broken::ListLinks(member.start()));
        }
        if !parent.is_null() && priority(parent) < priority(at) {
            return Err(Broken::ListOrder(member.start()));
        }
        let below = check(left, at, seen)?;
        if seen.last.is_some_and(|last| last >= place(at)) {
            return Err(Broken::ListOrder(member.start()));
        }
        seen.last = Some(place(at));
        seen.count += 1;
        (seen.each)(member)?;
        let largest = member.end().max(below).max(check(right, at, seen)?);
        if largest == max { Ok(max) } else { Err(Broken::ListMax(member.start())) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::object) struct Member {
        links: Shared<Links<Member>>,
        age: Shared<Age>,
        start: u64,
        end: u64,
    }
    impl Member {
        /// A member in no tree. The caller frees it.
        pub(in crate::object) fn new(start: u64, end: u64) -> *mut Member {
            Box::into_raw(Box::new(Member {
                links: Shared::new(Links::new(end)),
                age: Shared::new(Age::new()),
                start,
                end,
            }))
        }
    }
    // SAFETY: `start` and `end` never change after a member is made, and each length is at least 1.
    unsafe impl Interval for Member {
        fn links(&self) -> &Shared<Links<Self>> {
            &self.links
        }
        fn age(&self) -> &Shared<Age> {
            &self.age
        }
        fn start(&self) -> u64 {
            self.start
        }
        fn end(&self) -> u64 {
            self.end
        }
    }

    proptest! {
        #[test]
        fn overlaps_are_those_that_a_list_would_find(
            ops in proptest::collection::vec((0u64..100, 1u64..40, any::<bool>()), 1..150),
            asks in proptest::collection::vec((0u64..140, 1u64..30), 1..20),
            since in 0u64..150,
        ) {
            let mut tree = Tree::<Member>::new(ptr::null_mut());
            let mut list: Vec<*mut Member> = vec![];
            for (stamp, (start, len, remove)) in (1..).zip(ops) {
                if stamp == since {
                    tree.note_walk();
                }
                if remove && !list.is_empty() {
                    let m = list.swap_remove(start as usize % list.len());
                    // SAFETY: the member is in the tree, and was made by `Box::into_raw`.
                    unsafe {
                        tree.remove(m);
                        drop(Box::from_raw(m));
                    }
                } else {
                    let end = start + len;
                    let m = Member::new(start, end);
                    // SAFETY: the box was just made and is in no tree. It is freed after its removal, or after the last
                    // use of the tree.
                    unsafe { tree.insert(m, stamp) };
                    list.push(m);
                }
                prop_assert_eq!(tree.check(&mut |_| Ok(())), Ok(list.len() as u64));
            }
            for (start, len) in asks {
                let end = start + len;
                let mut got = vec![];
                let mut after = None;
                while let Some(m) = tree.next_overlap(start, end, after) {
                    after = Some(Tree::place(m));
                    got.push(Tree::place(m));
                    // SAFETY: `next_overlap` has just found `m` in this tree, and nothing was removed since.
                    let from = unsafe { tree.next_overlap_from(m, start, end) }.map(Tree::place);
                    prop_assert_eq!(from, tree.next_overlap(start, end, after).map(Tree::place));
                }
                // SAFETY: the members are alive until the end of the test.
                let mut want: Vec<TreePlace> = list.iter().map(|m| unsafe { &**m })
                    .filter(|m| m.start < end && m.end > start).map(Tree::place).collect();
                want.sort();
                prop_assert_eq!(got, want);
                if since == 0 {
                    continue;
                }
                // SAFETY: the members are alive until the end of the test, and no age is written any more.
                let newer = |m: &&Member| unsafe { m.age.get() }.stamp >= since;
                // SAFETY: the boxes on the list are freed only by the loop at the end of the test.
                let mut want: Vec<TreePlace> = list.iter().map(|m| unsafe { &**m })
                    .filter(|m| m.start < end && m.end > start).filter(newer).map(Tree::place).collect();
                want.sort();
                for steps in [1, 2, 1000] {
                    let (mut got, mut after) = (vec![], None);
                    loop {
                        match tree.next_newer(start, end, since, after, &mut { steps }) {
                            Newer::Member(m) => {
                                got.push(Tree::place(m));
                                after = Some(Tree::place(m));
                            }
                            Newer::NotYet(place) => after = Some(place),
                            Newer::End => break,
                        }
                    }
                    prop_assert_eq!(&got, &want);
                }
                // SAFETY: the boxes on the list are freed only by the loop at the end of the test.
                let next = list.iter().map(|m| unsafe { (**m).start }).filter(|s| *s > start).min();
                prop_assert_eq!(tree.next_start(start), next);
            }
            for m in list {
                // SAFETY: each pointer on the list came from `Box::into_raw`, and the tree is not used any more.
                drop(unsafe { Box::from_raw(m) });
            }
        }
    }
}
