//! The model of the contents of one lane of a space. The model is exact where one CPU works alone. Where other CPUs
//! access the lane, the model allows as few contents as possible.
//!
//! A *lane* is a set of pages that only one CPU, its owner, maps, unmaps, protects and stamps. (A stamp is a word that
//! identifies the store.) Other CPUs may read the pages, store beside the stamp, or fork the space at any moment. So a
//! page's state is a set of candidates. The owner's own operations leave one candidate. In a forked child the
//! candidates are all states that the parent's page had during the fork. Each access removes candidates that do not
//! explain its result. If none is left, that is an error of the core (or of the model).

use quire_vm::{Access, FaultError, Prot};
use std::sync::Arc;

/// The state of a page of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not mapped.
    Unmapped,
    /// Private memory: its rights, its stamp, and the stamp that a read finds after the memory was dropped.
    Private(Prot, u64, u64),
    /// Shared memory: its rights, the number of the shared object, and the page in the lane's part of that object. The
    /// object has the stamp.
    Shared(Prot, usize, usize),
}

impl State {
    /// The rights; `None` if the page is not mapped.
    pub fn prot(self) -> Option<Prot> {
        match self {
            State::Unmapped => None,
            State::Private(p, ..) | State::Shared(p, ..) => Some(p),
        }
    }

    /// Returns the state of the same memory with other rights.
    pub fn with_prot(self, prot: Prot) -> State {
        match self {
            State::Unmapped => State::Unmapped,
            State::Private(_, v, b) => State::Private(prot, v, b),
            State::Shared(_, o, p) => State::Shared(prot, o, p),
        }
    }
}

/// The way in which a fork treats a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The child inherits the page.
    Keep,
    /// The child has no mapping there.
    Leave,
    /// The child has empty memory there.
    Wipe,
    /// The model does not know whether a fork keeps the page, leaves it out, or gives the child zeroes.
    Unknown,
}

impl Fate {
    fn of(self, state: State) -> State {
        match (self, state) {
            (Fate::Leave, _) => State::Unmapped,
            (Fate::Wipe, State::Private(prot, ..)) => State::Private(prot, 0, 0),
            (_, same) => same,
        }
    }
}

/// How an access ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The access succeeded. A read of the stamp has the value that was read.
    Value(Option<u64>),
    /// The access failed.
    Failed(FaultError),
}

/// The known content of a page of a shared object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The page's stamp.
    Stamp(u64),
    /// The page lies beyond the object's end.
    Beyond,
    /// The page's owner may be changing it.
    Unknown,
}

impl State {
    /// Whether an access to a page in this state could have the result `seen`. `shared` returns the content of a shared
    /// page.
    pub fn explains(self, access: Access, seen: Seen, shared: impl Fn(usize, usize) -> Content) -> bool {
        match (seen, self.prot()) {
            // Always possible for a mapped page, because only the test knows whether allocations or the pager can fail.
            (Seen::Failed(FaultError::OutOfMemory | FaultError::Pager(_)), Some(_)) => true,
            (Seen::Failed(FaultError::NotMapped), None) => true,
            (Seen::Failed(FaultError::Protection), Some(p)) => !p.contains(access.needs()),
            (Seen::Failed(FaultError::BeyondEnd), Some(p)) if p.contains(access.needs()) => match self {
                State::Shared(_, o, p) => matches!(shared(o, p), Content::Beyond | Content::Unknown),
                _ => false,
            },
            (Seen::Value(v), Some(p)) if p.contains(access.needs()) => match (v, self) {
                (Some(v), State::Private(_, own, _)) => v == own,
                (v, State::Shared(_, o, p)) => match shared(o, p) {
                    Content::Stamp(s) => v.is_none_or(|v| v == s),
                    Content::Beyond => false,
                    Content::Unknown => true,
                },
                _ => true,
            },
            _ => false,
        }
    }
}

/// A span of the test's logical clock, both ends included.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The time before the operation began.
    pub from: u64,
    /// The time after the operation ended.
    pub to: u64,
}

#[derive(Clone, Debug)]
struct Past {
    states: Vec<State>,
    span: Span,
}

/// The model of one page of a lane.
#[derive(Clone, Debug)]
pub struct Page {
    now: Vec<State>,
    /// The earliest time at which `now` may have begun.
    since: u64,
    /// Earlier states, kept while another CPU watches the space.
    past: Vec<Past>,
    /// The page's fates in forks, with the span of each. The last entry is its fate in a fork now.
    fates: Vec<(Fate, Span)>,
    /// The last operations on the page, for error messages.
    log: Vec<(Span, Arc<str>)>,
}

/// The number of operations in a page's log.
const LOG: usize = 8;

impl Page {
    /// A page that is not mapped.
    pub fn new() -> Page {
        Page::of(vec![State::Unmapped])
    }

    /// A page in one of the states `candidates`.
    pub fn of(candidates: Vec<State>) -> Page {
        Page { now: candidates, since: 0, past: Vec::new(), fates: Vec::new(), log: Vec::new() }
    }

    /// Logs that `operation` was done to the page during `span`.
    pub fn note(&mut self, span: Span, operation: &Arc<str>) {
        if self.log.len() == LOG {
            self.log.remove(0);
        }
        self.log.push((span, operation.clone()));
    }

    /// Returns the model of the page in the child of a fork that ran during `span`.
    pub fn inherited(&self, span: Span, operation: &Arc<str>) -> Page {
        let mut states: Vec<State> = Vec::new();
        for fate in self.fates_during(span) {
            for state in self.during(span).into_iter().map(|s| fate.of(s)) {
                if !states.contains(&state) {
                    states.push(state);
                }
            }
        }
        let mut page = Page::of(states);
        // The child's memory has the same fate in later forks as its parent's, if that fate is known.
        let forever = Span { from: 0, to: u64::MAX };
        match self.fates_during(span)[..] {
            [Fate::Keep] => {}
            [one] => page.fates.push((one, forever)),
            _ => page.fates.push((Fate::Unknown, forever)),
        }
        page.log = self.log.clone();
        page.note(span, operation);
        page
    }

    /// The fates that forks during `span` may have had for the page.
    fn fates_during(&self, span: Span) -> Vec<Fate> {
        let mut fates: Vec<Fate> =
            self.fates.iter().filter(|(_, s)| s.from <= span.to && span.from <= s.to).map(|(f, _)| *f).collect();
        match self.fates.first() {
            None => fates.push(Fate::Keep),
            // The span begins before the first entry of the list.
            Some((_, s)) if s.from > span.from => fates.push(Fate::Unknown),
            Some(_) => {}
        }
        if fates.contains(&Fate::Unknown) {
            fates = vec![Fate::Keep, Fate::Leave, Fate::Wipe, Fate::Unknown];
        }
        fates.dedup();
        fates
    }

    /// The page's fate in a fork now; `Unknown` if the model does not know it.
    pub fn fate(&self) -> Fate {
        self.fates.last().map_or(Fate::Keep, |(f, _)| *f)
    }

    /// Records that an operation during `span` set the page's fate in forks.
    pub fn set_fate(&mut self, fate: Fate, span: Span) {
        if let Some((last, held)) = self.fates.last_mut() {
            if *last == fate {
                return;
            }
            held.to = span.to;
        } else if fate == Fate::Keep {
            return;
        } else {
            self.fates.push((Fate::Keep, Span { from: 0, to: span.to }));
        }
        let excess = self.fates.len().saturating_sub(16);
        self.fates.drain(..excess);
        self.fates.push((fate, Span { from: span.from, to: u64::MAX }));
    }

    /// The last operations on the page.
    pub fn log(&self) -> &[(Span, Arc<str>)] {
        &self.log
    }

    /// The present candidates.
    pub fn now(&self) -> &[State] {
        &self.now
    }

    /// The state, if there is only one candidate.
    pub fn certain(&self) -> Option<State> {
        if let [one] = self.now[..] { Some(one) } else { None }
    }

    /// Records that an operation of the owner, which ran during `span`, made the page one of `states`. If `watched`,
    /// the old states are kept: an access of another CPU may have begun before the end of `span`.
    pub fn become_one_of(&mut self, mut states: Vec<State>, span: Span, watched: bool) {
        states.dedup();
        let old = std::mem::replace(&mut self.now, states);
        if watched {
            self.past.push(Past { states: old, span: Span { from: self.since, to: span.to } });
        } else {
            self.past.clear();
        }
        self.since = span.from;
    }

    /// Changes every candidate by `f`, as an operation during `span`.
    pub fn change(&mut self, span: Span, watched: bool, f: impl Fn(State) -> State) {
        let states = self.now.iter().map(|s| f(*s)).collect();
        self.become_one_of(states, span, watched);
    }

    /// Keeps only the candidates that explain the result of the owner's access. Returns `false` if none does.
    pub fn narrow(&mut self, explains: impl Fn(State) -> bool) -> bool {
        if self.now.iter().all(|s| explains(*s)) {
            return true;
        }
        let left: Vec<State> = self.now.iter().copied().filter(|s| explains(*s)).collect();
        if left.is_empty() {
            return false;
        }
        self.now = left;
        true
    }

    /// Every state that the page may have had at a moment of `span`.
    pub fn during(&self, span: Span) -> Vec<State> {
        let mut states = Vec::new();
        let past = self.past.iter().filter(|p| p.span.from <= span.to && span.from <= p.span.to);
        let now = (self.since <= span.to).then_some(&self.now);
        for s in past.map(|p| &p.states).chain(now).flatten() {
            if !states.contains(s) {
                states.push(*s);
            }
        }
        states
    }
}

impl Default for Page {
    fn default() -> Self {
        Page::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: Prot = Prot::READ.union(Prot::WRITE);

    #[test]
    fn an_observer_sees_only_the_old_or_the_new_state() {
        let mut page = Page::of(vec![State::Private(RW, 1, 0)]);
        page.become_one_of(vec![State::Private(RW, 2, 0)], Span { from: 10, to: 12 }, true);
        let at = |from, to| page.during(Span { from, to });
        assert_eq!(at(8, 9), [State::Private(RW, 1, 0)]);
        assert_eq!(at(9, 11), [State::Private(RW, 1, 0), State::Private(RW, 2, 0)]);
        assert_eq!(at(13, 14), [State::Private(RW, 2, 0)]);
    }

    #[test]
    fn an_access_that_nothing_explains_is_an_error() {
        let mut page = Page::of(vec![State::Private(RW, 1, 0), State::Unmapped]);
        let seen = |s: State, v| s.explains(Access::Read, v, |_, _| Content::Unknown);
        assert!(page.narrow(|s| seen(s, Seen::Value(Some(1)))));
        assert_eq!(page.certain(), Some(State::Private(RW, 1, 0)));
        assert!(!page.narrow(|s| seen(s, Seen::Failed(FaultError::NotMapped))));
        assert!(!page.narrow(|s| seen(s, Seen::Value(Some(3)))));
    }
}
