//! Tracing: events with times, in a kernel that is built for it.
//!
//! With the feature `trace`, the end of each [`Span`] and each [`note`] calls the final binary's [`Trace`], bound at
//! link time by [`provide_trace!`](crate::provide_trace). Without the feature they compile to nothing: a span has no
//! size, and its arguments cost no instruction. This module has one list of the kinds of all layers, as
//! [`rank`](crate::rank) has the ranks of all locks.

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The kind of an event.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum EventKind { $($(#[$doc])* $name,)* }
        impl EventKind {
            /// Every kind, in the order of their numbers.
            pub const ALL: &'static [EventKind] = &[$(EventKind::$name,)*];
            /// The kind's name in tools.
            pub fn name(self) -> &'static str {
                match self { $(EventKind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// The CPU runs the thread with the number `a` from this event on.
    Switch = "switch",
    /// The name of a thread: `a` and `b` hold its bytes.
    Name = "name",
    /// A thread has ended: `a` is its number.
    End = "end",
    /// A system call: its number is the detail, `a` its first argument, `b` its result.
    Call = "call",
    /// A fault: the detail is how it was served, `a` the address, `b` how often it was retried.
    Fault = "fault",
    /// Resident neighbours of a faulting page were mapped too, for loads: `b` pages from `a` on.
    Around = "fault around",
    /// First touches of consecutive pages: `b` further pages of zeroes were made, from `a` on.
    Ahead = "fault ahead",
    /// A mapping of `b` bytes was made at address `a`. The following kinds, up to [`EventKind::TakeApart`], have the
    /// same `a` and `b`.
    Map = "map",
    /// Mappings were removed.
    Unmap = "unmap",
    /// Mappings' protection was changed.
    Protect = "protect",
    /// A mapping was moved or resized.
    Remap = "remap",
    /// Advice (`madvise`) was applied.
    Advise = "advise",
    /// Memory was wired or unwired.
    Wire = "wire",
    /// An address space was copied.
    Fork = "fork",
    /// An address space was destroyed.
    TakeApart = "take apart",
    /// This CPU made other CPUs drop translations: `a` is their number.
    Shootdown = "shootdown",
    /// This CPU served a shootdown of another CPU: `a` is that CPU.
    Answer = "shootdown answered",
    /// Pages were read from their pager: `a` is their number.
    PageIn = "page in",
    /// A thread waited for a page that another thread had busy.
    BusyPage = "busy page",
    /// A thread waited for free memory.
    NoMemory = "memory",
    /// A pass of pageout: `a` is the number of frames that it has freed, `b` the number of writes that it has started.
    Pageout = "pageout",
    /// Pageout started to write a cluster of pages: `a` is their number.
    Launder = "launder",
    /// A CPU waited for the spin lock at `a`; the detail is its rank.
    Spin = "spin lock",
    /// A thread waited for the sleeping lock at `a`.
    Lock = "lock",
}

/// An event, as the final binary receives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time at which the event began, in ticks of [`Trace::ticks`].
    pub start: u64,
    /// The length of the event in ticks of [`Trace::ticks`]; 0 for an event without a length.
    pub length: u64,
    /// The kind of the event.
    pub kind: EventKind,
    /// A value that the kind defines.
    pub detail: u32,
    /// A value that the kind defines.
    pub a: u64,
    /// A value that the kind defines.
    pub b: u64,
}

/// The receiver of events.
pub trait Trace {
    /// The clock in ticks, which never goes back on any CPU.
    fn ticks() -> u64;
    /// Records an event. Called in any context: with locks held, and in interrupt handlers.
    fn record(event: &Event);
}

/// Names the type that implements [`Trace`] for this binary. Used once in a program, where the feature `trace` is on.
#[macro_export]
macro_rules! provide_trace {
    ($t:ty) => {
        const _: () = {
            #[unsafe(no_mangle)]
            fn __quire_trace_ticks() -> u64 {
                <$t as $crate::trace::Trace>::ticks()
            }
            #[unsafe(no_mangle)]
            fn __quire_trace(event: &$crate::trace::Event) {
                <$t as $crate::trace::Trace>::record(event)
            }
        };
    };
}

#[cfg(all(feature = "trace", not(any(test, loom, shuttle, feature = "std"))))]
mod bound {
    unsafe extern "Rust" {
        pub safe fn __quire_trace_ticks() -> u64;
        pub safe fn __quire_trace(event: &super::Event);
    }
}

/// Threads of the host keep their events if a test enables that.
#[cfg(all(feature = "trace", any(test, loom, shuttle, feature = "std")))]
mod bound {
    use super::Event;
    use std::cell::{Cell, RefCell};

    std::thread_local! {
        static TICKS: Cell<u64> = const { Cell::new(0) };
        static KEPT: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
    }

    pub fn __quire_trace_ticks() -> u64 {
        TICKS.set(TICKS.get() + 1);
        TICKS.get()
    }

    pub fn __quire_trace(event: &Event) {
        KEPT.with_borrow_mut(|kept| kept.iter_mut().for_each(|kept| kept.push(*event)));
    }

    /// Returns the events of the calling thread during `f`. Each read of that thread's clock advances the clock by one
    /// tick.
    pub fn events_of(f: impl FnOnce()) -> Vec<Event> {
        KEPT.set(Some(Vec::new()));
        f();
        KEPT.take().unwrap_or_default()
    }
}
#[cfg(all(feature = "trace", any(test, loom, shuttle, feature = "std")))]
pub use bound::events_of;

/// An operation that takes time: dropping the span ends it and records the event.
#[must_use]
pub struct Span {
    #[cfg(feature = "trace")]
    event: Event,
}

impl Span {
    /// A span that begins now.
    #[inline(always)]
    pub fn begin(kind: EventKind, a: u64, b: u64) -> Span {
        #[cfg(feature = "trace")]
        return Span { event: Event { start: bound::__quire_trace_ticks(), length: 0, kind, detail: 0, a, b } };
        #[cfg(not(feature = "trace"))]
        {
            let _ = (kind, a, b);
            Span {}
        }
    }

    /// Sets `detail` and `b`.
    #[inline(always)]
    pub fn set(&mut self, detail: u32, b: u64) {
        #[cfg(feature = "trace")]
        {
            self.event.detail = detail;
            self.event.b = b;
        }
        #[cfg(not(feature = "trace"))]
        let _ = (detail, b);
    }

    /// Sets the counts `a` and `b`.
    #[inline(always)]
    pub fn count(&mut self, a: u64, b: u64) {
        #[cfg(feature = "trace")]
        {
            self.event.a = a;
            self.event.b = b;
        }
        #[cfg(not(feature = "trace"))]
        let _ = (a, b);
    }
}

#[cfg(feature = "trace")]
impl Drop for Span {
    #[inline(always)]
    fn drop(&mut self) {
        self.event.length = bound::__quire_trace_ticks().wrapping_sub(self.event.start);
        bound::__quire_trace(&self.event);
    }
}

/// Records an event without a length.
#[inline(always)]
pub fn note(kind: EventKind, detail: u32, a: u64, b: u64) {
    #[cfg(feature = "trace")]
    bound::__quire_trace(&Event { start: bound::__quire_trace_ticks(), length: 0, kind, detail, a, b });
    #[cfg(not(feature = "trace"))]
    let _ = (kind, detail, a, b);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_their_order() {
        assert!(EventKind::ALL.iter().enumerate().all(|(n, kind)| *kind as usize == n));
    }

    #[test]
    #[cfg(not(feature = "trace"))]
    fn a_span_is_nothing_where_nothing_is_traced() {
        assert_eq!(size_of::<Span>(), 0);
        assert!(!core::mem::needs_drop::<Span>());
    }

    #[test]
    #[cfg(feature = "trace")]
    fn a_span_is_an_event_when_it_ends() {
        let events = events_of(|| {
            let mut outer = Span::begin(EventKind::Fault, 1, 2);
            note(EventKind::End, 0, 7, 0);
            outer.set(3, 4);
        });
        let at = |kind, start, length, detail, a, b| Event { start, length, kind, detail, a, b };
        let first = events[1].start;
        assert_eq!(events, [at(EventKind::End, first + 1, 0, 0, 7, 0), at(EventKind::Fault, first, 2, 3, 1, 4)]);
    }
}
