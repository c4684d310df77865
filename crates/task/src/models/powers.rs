//! Changes of a thread's powers, against a looker at its memory. See [`powers`](crate::powers).

use crate::powers::{Looked, Openness, change, copy, leave, look};
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::{Rank, SpinLock, protocol};

/// The user ids of the threads; the looker is user 5.
const USER: u32 = 5;
const ROOT: u32 = 0;

/// Memory, and the user whose secrets are in it.
struct Memory {
    open: Openness,
    holds: AtomicU32,
}

impl Memory {
    fn new(open: bool, holds: u32) -> Arc<Memory> {
        Arc::new(Memory { open: Openness::new(open), holds: AtomicU32::new(holds) })
    }
}

struct Owner {
    memory: SpinLock<Option<Arc<Memory>>>,
    user: SpinLock<u32>,
    left: Openness,
}

impl Owner {
    fn new(user: u32, memory: Arc<Memory>) -> Arc<Owner> {
        Arc::new(Owner {
            memory: SpinLock::new(Rank::PROCESS, Some(memory)),
            user: SpinLock::new(Rank::PROCESS, user),
            left: Openness::new(true),
        })
    }

    fn become_user(&self, user: u32) {
        let memory = self.memory.lock().clone();
        change(memory.as_ref().map(|memory| &memory.open), || *self.user.lock() = user);
    }

    fn enter(&self, memory: Option<Arc<Memory>>) {
        let old = core::mem::replace(&mut *self.memory.lock(), memory);
        drop(old);
    }

    /// The memory to which user 5 gets access.
    fn seen_by_user(&self) -> Option<Option<Arc<Memory>>> {
        look(self, |user, is_open| *user == USER && is_open())
    }
}

impl Looked for Owner {
    type Memory = Arc<Memory>;
    type Ids = u32;
    fn memory(&self) -> Option<Arc<Memory>> {
        self.memory.lock().clone()
    }
    fn ids(&self) -> u32 {
        *self.user.lock()
    }
    fn is_open(&self, memory: Option<&Arc<Memory>>) -> bool {
        memory.map_or_else(|| self.left.is_open(), |memory| memory.open.is_open())
    }
}

/// Calls `act` for `owner` while another thread looks at the owner's memory. Returns the memory that the looker got.
fn seen_during(owner: &Arc<Owner>, act: impl FnOnce(&Owner)) -> Option<Option<Arc<Memory>>> {
    let other = owner.clone();
    let looker = thread::spawn(move || {
        set_cpu(1);
        other.seen_by_user()
    });
    set_cpu(0);
    act(owner);
    looker.join().unwrap()
}

/// Checks that the memory that user 5 got contains no secrets of root.
fn assert_no_secret(seen: Option<Option<Arc<Memory>>>) {
    let memory = seen.flatten();
    assert!(memory.is_none_or(|memory| memory.holds.load(Ordering::Relaxed) == USER), "a secret is seen");
}

/// A process of root becomes a process of user 5: its memory stays secret.
fn setuid_against_look() {
    set_cpu(0);
    let owner = Owner::new(ROOT, Memory::new(true, ROOT));
    assert_no_secret(seen_during(&owner, |owner| owner.become_user(USER)));
    assert!(owner.seen_by_user().is_none(), "memory with secrets is open");
}

protocol! {
    an_observer_of_new_ids_sees_the_memory_closed = setuid_against_look, Some(3);
    ClosesLate: "a secret is seen";
    OpenBeforeIds: "a secret is seen";
}

/// A process of user 5 executes a set-user-ID program: the new memory is secret.
fn set_id_exec_against_look() {
    set_cpu(0);
    let owner = Owner::new(USER, Memory::new(true, USER));
    let seen = seen_during(&owner, |owner| {
        owner.enter(Some(Memory::new(false, ROOT)));
        owner.become_user(ROOT);
    });
    assert_no_secret(seen);
}

protocol! {
    the_granted_memory_is_the_memory_that_was_checked = set_id_exec_against_look, Some(3);
    GrantsOther: "a secret is seen";
}

/// A process of root becomes a process of user 5, and then calls exec. The new memory is open, and the old memory is
/// not.
fn exec_against_look() {
    set_cpu(0);
    let owner = Owner::new(ROOT, Memory::new(true, ROOT));
    let seen = seen_during(&owner, |owner| {
        owner.become_user(USER);
        owner.enter(Some(Memory::new(true, USER)));
    });
    assert_no_secret(seen);
    assert!(owner.seen_by_user().is_some(), "open memory is refused");
}

protocol! {
    memory_stays_closed_though_the_next_is_open = exec_against_look, Some(3);
    OpenOfOther: "a secret is seen";
}

/// A process whose memory is closed exits.
fn leave_against_look() {
    set_cpu(0);
    let memory = Memory::new(false, ROOT);
    let owner = Owner::new(USER, memory.clone());
    let seen = seen_during(&owner, |owner| leave(Some(&memory.open), &owner.left, || owner.enter(None)));
    assert!(seen.is_none(), "a process that ends is open");
}

protocol! {
    a_process_that_ends_stays_as_closed_as_it_was = leave_against_look, Some(3);
    NotesLate: "a process that ends is open";
}

/// A thread changes its powers and then stores secrets, while another thread of its process forks.
fn change_against_copy() {
    set_cpu(0);
    let memory = Memory::new(true, USER);
    let owner = Owner::new(USER, memory.clone());
    let fork = thread::spawn(move || {
        set_cpu(1);
        copy(&memory.open, || Ok::<_, ()>(memory.holds.load(Ordering::Acquire))).unwrap()
    });
    owner.become_user(ROOT);
    if let Some(memory) = owner.memory() {
        memory.holds.store(ROOT, Ordering::Release);
    }
    let (holds, open) = fork.join().unwrap();
    assert!(holds == USER || !open, "a copy with secrets is open");
}

protocol! {
    a_copied_memory_is_as_closed_as_its_content = change_against_copy, Some(3);
    OpenBeforeCopy: "a copy with secrets is open";
}
