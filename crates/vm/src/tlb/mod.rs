//! Flushes of removed and weakened translations: the obligation to flush, and the proof that no CPU uses the
//! translations.
//!
//! Weakening a translation returns an [`Obligation`](flush::Obligation). Its discharge sends the shootdowns and returns
//! a [`Flushed`](flush::Flushed), which is required to free memory and to finish operations. This folder owns C4
//! (frames after the flush) and the flush of C3 (stale entries). It uses the machine and frames, and does not know
//! objects or maps.

pub mod flush;
