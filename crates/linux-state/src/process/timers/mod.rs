//! A process's timers: the [`interval`] timer, the timers of `timer_create` ([`posix`]), and the limit on CPU time
//! ([`cpu_limit`]).

pub mod cpu_limit;
pub mod interval;
pub mod posix;
