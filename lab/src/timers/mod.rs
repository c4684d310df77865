//! Timers behind one trait: the production timer wheels, and a ring of lists of fixed size with one lock, which kernels
//! had before.

mod ring;
mod still;

pub use ring::Ring;
pub use still::{Still, Wheel};

/// Timers, identified by numbers. Each is armed at most once at a time. Times are in nanoseconds.
pub trait Timers {
    /// Arms a timer, which must not be armed.
    fn arm(&mut self, timer: u32, deadline: u64);

    /// Cancels a timer, which must be armed.
    fn cancel(&mut self, timer: u32);

    /// Advances the time to `now`. Calls `fired` for each expired timer, and arms the timer again if `fired` returns a
    /// deadline.
    fn advance(&mut self, now: u64, fired: &mut dyn FnMut(u32) -> Option<u64>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::workload::Random;

    const MILLISECOND: u64 = 1_000_000;

    fn fires_each_in_its_time(timers: &mut dyn Timers) {
        const N: u32 = 300;
        let mut random = Random(3);
        let mut armed: Vec<Option<u64>> = vec![None; N as usize];
        let (mut now, mut fired) = (0, 0);
        for _ in 0..3000 {
            let timer = random.below(N.into()) as u32;
            match armed[timer as usize].take() {
                Some(_) => timers.cancel(timer),
                None => {
                    let deadline = now + random.below(5000 * MILLISECOND);
                    timers.arm(timer, deadline);
                    armed[timer as usize] = Some(deadline);
                }
            }
            now += random.below(20 * MILLISECOND);
            timers.advance(now, &mut |timer| {
                let deadline = armed[timer as usize].take();
                assert!(deadline.is_some_and(|d| d <= now), "timer {timer} fires at {now}, was due {deadline:?}");
                fired += 1;
                None
            });
            // A timer fires at most a tick later than its deadline.
            assert!(armed.iter().flatten().all(|d| d + 2 * MILLISECOND > now), "one was forgotten at {now}");
        }
        assert!(fired > 100, "{fired}");
    }

    #[test]
    fn each_fires_once_and_never_early_unless_it_is_cancelled() {
        fires_each_in_its_time(&mut Ring::new(300));
        fires_each_in_its_time(&mut Wheel::new(300));
    }

    #[test]
    fn a_timer_armed_again_as_it_fires_fires_again() {
        fn periods(timers: &mut dyn Timers) -> u32 {
            let mut fired = 0;
            timers.arm(0, MILLISECOND);
            for n in 1..=100 {
                let now = n * 10 * MILLISECOND;
                timers.advance(now, &mut |_| {
                    fired += 1;
                    Some(now + 5 * MILLISECOND)
                });
            }
            fired
        }
        assert_eq!((periods(&mut Ring::new(1)), periods(&mut Wheel::new(1))), (100, 100));
    }
}
