//! A process's timers: [`interval`] of time, those of `timer_create` ([`posix`]), and the limit on CPU time
//! ([`cpu_limit`]).

pub mod cpu_limit;
pub mod interval;
pub mod posix;
