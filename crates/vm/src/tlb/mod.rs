//! Removed and weakened translations: the flush that is owed until no CPU uses them, and the proof that none does.
//!
//! Weakening a translation returns an [`Obligation`](flush::Obligation). Its discharge sends the shootdowns and gives a
//! [`Flushed`](flush::Flushed), which frees memory and finishes operations. This folder owns C4 (frames after the
//! flush) and the flush of C3 (stale entries). It uses the machine and frames, and knows no object or map.

pub mod flush;
