//! Room: how much several threads hold at once. Who asks for more than is left waits, and everybody behind him.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub struct Room {
    most: usize,
    turn: Mutex<()>,
    held: Mutex<usize>,
    freed: Condvar,
}

/// Gives back when it goes.
pub struct Held<'a> {
    room: &'a Room,
    amount: usize,
}

impl Room {
    pub fn new(most: usize) -> Room {
        Room { most, turn: Mutex::new(()), held: Mutex::new(0), freed: Condvar::new() }
    }

    /// More than all there is counts as all there is. A thread holds one at a time.
    pub fn take(&self, amount: usize) -> Held<'_> {
        let amount = amount.min(self.most);
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.held();
        while *held + amount > self.most {
            held = self.freed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        *held += amount;
        Held { room: self, amount }
    }

    /// A panic elsewhere leaves the number right: it is changed in one step.
    fn held(&self) -> MutexGuard<'_, usize> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.room.held() -= self.amount;
        self.room.freed.notify_all();
    }
}
