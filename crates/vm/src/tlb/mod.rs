//! Translations that are taken away: what is owed until no CPU uses them, and the proof that none does.
//!
//! Weakening a translation returns an [`Obligation`](flush::Obligation). Its discharge sends the shootdowns and gives a
//! [`Flushed`](flush::Flushed), which frees memory and finishes operations. The room is home to C4 (frames after the flush) and
//! the flush of C3 (stale entries). It knows the machine and frames, and no object or map.

pub mod flush;
