//! Leader election by a Lease: which of several replicas gives out the keys of queues.
//!
//! The rules are those of client-go's `tools/leaderelection`. A holder writes the Lease again and again. Another candidate takes
//! it over once it has not seen the record change for the time that the record names. It measures that time itself: the times in
//! the record were written by the clock of another machine, and only tell whether the record has changed.
//!
//! Two rules keep two candidates from leading at once. Each write is conditional on the version that was read, so that of two
//! writers one gets a conflict. And a leader leads for [`Timing::renew`] from the moment at which it *sent* its last successful
//! write, which is less than the time that the others wait from the moment at which they *saw* that write. So the clocks need not
//! agree, but none may run faster than another by more than `lease / renew`. There are two exceptions. A process that is stopped
//! between looking at its clock and answering a worker does not notice the time. And if somebody deletes the Lease, a candidate
//! that never saw it may create it while the holder still leads.

use std::time::Duration;

use tokio::time::Instant;

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after the record has last changed. Whole seconds.
    pub lease: Duration,
    /// How long a leader leads after its last successful write was sent. Less than `lease`.
    pub renew: Duration,
    /// Time between two tries. Several fit into `renew`.
    pub retry: Duration,
}

/// The part of a Lease that the election reads. Equal records are the same state of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty for nobody.
    pub holder: String,
    /// How long others wait.
    pub lease: Duration,
    /// `acquireTime`, which is only compared.
    pub acquired: String,
    /// `renewTime`, which is only compared.
    pub renewed: String,
    /// How often the holder changed.
    pub transitions: u32,
}

/// A request that the election makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read the Lease.
    Read,
    /// Write the Lease.
    Write(Write),
}

/// A write of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The new holder; empty to release it.
    pub holder: String,
    /// How long others wait.
    pub lease: Duration,
    /// How often the holder changed.
    pub transitions: u32,
    /// Whether the holder is a new one, so that `acquireTime` is now.
    pub begins: bool,
    /// The version that must still be the current one; `None` to create the Lease.
    pub version: Option<String>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The Lease as it was read or, after a write, as it is now; and its version.
    Found(Record, String),
    /// There is no Lease.
    Absent,
    /// Another version is the current one, or it exists already.
    Conflict,
    /// There was no answer, or another one. A write may have been executed, or may be later.
    Failed,
}

/// Whether a candidate leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads.
    Leads {
        /// Counts the times that this candidate began to lead.
        term: u64,
        /// Unless it hears more, it leads until then.
        until: Instant,
    },
    /// It does not lead.
    Follows {
        /// Who does, as far as it knows.
        leader: Option<String>,
    },
}

/// A candidate.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
    /// The end of the term, and its number.
    term: Option<(Instant, u64)>,
    terms: u64,
    /// When the request under way was sent.
    sent: Option<Instant>,
    /// Whether the write under way follows a read of the same try.
    was_read: bool,
}

/// The Lease as it was last seen.
#[derive(Clone, Debug)]
struct Seen {
    record: Record,
    version: String,
    /// When this record was seen first.
    at: Instant,
}

/// The wait of a follower before its next try is up to this much longer than the retry period, at random, so that followers do not
/// all try at the same moment. Source: client-go `tools/leaderelection`, `JitterFactor`.
const JITTER: f64 = 1.2;

/// `leaseDurationSeconds` of a Lease that was released. Source: client-go `tools/leaderelection`, `release`.
const RELEASED: Duration = Duration::from_secs(1);

// === impl Timing ===

impl Timing {
    /// The times of client-go's core clients. Source: Kubernetes `component-base/config/v1alpha1/defaults.go`,
    /// `RecommendedDefaultLeaderElectionConfiguration`.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(15),
        renew: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };

    /// How long one request may take, so that a leader has a second try. Source: client-go `tools/leaderelection/resourcelock`,
    /// `NewFromKubeconfig`.
    pub fn request(&self) -> Duration {
        self.renew / 2
    }
}

// === impl Standing ===

impl Standing {
    /// The number of the term; `None` if it does not lead.
    pub fn term(&self) -> Option<u64> {
        match self {
            Self::Leads { term, .. } => Some(*term),
            Self::Follows { .. } => None,
        }
    }
}

// === impl Election ===

impl Election {
    /// A candidate. Its identity must be no other candidate's, not even that of one that is dead.
    pub fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, seen: None, term: None, terms: 0, sent: None, was_read: false }
    }

    /// Whether it leads.
    pub fn leads(&self, now: Instant) -> bool {
        self.term.is_some_and(|(until, _)| now < until)
    }

    /// Whether it leads, and who does otherwise.
    pub fn standing(&self, now: Instant) -> Standing {
        match self.term {
            Some((until, term)) if now < until => Standing::Leads { term, until },
            _ => {
                let other = self.seen.as_ref().filter(|seen| self.is_held_by_another(seen, now));
                Standing::Follows { leader: other.map(|seen| seen.record.holder.clone()) }
            }
        }
    }

    /// Begins a try. A leader writes at once, on the version of its last write.
    pub fn begin(&mut self, now: Instant) -> Ask {
        self.was_read = false;
        let own = self.seen.as_ref().filter(|seen| seen.record.holder == self.identity).cloned();
        match own {
            Some(seen) if self.leads(now) => self.write(Some(&seen), now),
            _ => self.read(now),
        }
    }

    /// Takes the answer to a request. Gives the next request of this try; `None` if the try is over.
    pub fn answered(&mut self, ask: &Ask, answer: Answer, now: Instant) -> Option<Ask> {
        let sent = self.sent.take()?;
        match (ask, answer) {
            (_, Answer::Failed) => None,
            (Ask::Read, Answer::Found(record, version)) => {
                let seen = self.see(record, version, now);
                if self.is_held_by_another(&seen, now) {
                    return None;
                }
                Some(self.write(Some(&seen), now))
            }
            (Ask::Read, Answer::Absent) => {
                // Its holder may still lead.
                self.term = None;
                if self.seen.as_ref().is_some_and(|seen| self.is_held_by_another(seen, now)) {
                    return None;
                }
                Some(self.write(None, now))
            }
            (Ask::Write(_), Answer::Found(record, version)) => {
                let _ = self.see(record, version, now);
                self.renewed(sent, now);
                None
            }
            // The version of the last write is no longer the current one: what is there now?
            (Ask::Write(_), Answer::Conflict | Answer::Absent) if !self.was_read => Some(self.read(now)),
            (Ask::Write(_), Answer::Conflict | Answer::Absent) | (Ask::Read, Answer::Conflict) => None,
        }
    }

    /// How long to wait after a try. `chance` is a random number from 0 to 1.
    pub fn pause(&self, chance: f64, now: Instant) -> Duration {
        match self.leads(now) {
            true => self.timing.retry,
            false => self.timing.retry.mul_f64(1.0 + JITTER * chance.clamp(0.0, 1.0)),
        }
    }

    /// Ceases to lead, and gives the write that tells the others not to wait; `None` if it does not hold the Lease.
    pub fn release(&mut self) -> Option<Write> {
        self.term = None;
        let seen = self.seen.as_ref().filter(|seen| seen.record.holder == self.identity)?;
        Some(Write {
            holder: String::new(),
            lease: RELEASED,
            transitions: seen.record.transitions,
            begins: false,
            version: Some(seen.version.clone()),
        })
    }

    /// Takes the answer to a read that belongs to no try.
    pub fn look(&mut self, answer: Answer, now: Instant) {
        match answer {
            Answer::Found(record, version) => drop(self.see(record, version, now)),
            Answer::Absent => self.seen = None,
            Answer::Conflict | Answer::Failed => {}
        }
    }

    fn read(&mut self, now: Instant) -> Ask {
        self.was_read = true;
        self.sent = Some(now);
        Ask::Read
    }

    fn write(&mut self, seen: Option<&Seen>, now: Instant) -> Ask {
        self.sent = Some(now);
        let begins = seen.is_none_or(|seen| seen.record.holder != self.identity);
        let before = seen.map_or(0, |seen| seen.record.transitions);
        Ask::Write(Write {
            holder: self.identity.clone(),
            lease: self.timing.lease,
            transitions: if begins && seen.is_some() { before.saturating_add(1) } else { before },
            begins,
            version: seen.map(|seen| seen.version.clone()),
        })
    }

    /// Notes what is there. A record that another candidate wrote ends the term.
    fn see(&mut self, record: Record, version: String, now: Instant) -> Seen {
        if record.holder != self.identity {
            self.term = None;
        }
        let at = self.seen.as_ref().filter(|seen| seen.record == record).map_or(now, |seen| seen.at);
        self.seen.insert(Seen { record, version, at }).clone()
    }

    /// It wrote the Lease: it leads from the moment at which the write was sent, on which the others do not count before.
    fn renewed(&mut self, sent: Instant, now: Instant) {
        let until = sent + self.timing.renew;
        if now >= until {
            return;
        }
        let term = match self.term {
            Some((before, term)) if now < before => term,
            _ => {
                self.terms += 1;
                self.terms
            }
        };
        self.term = Some((until, term));
    }

    fn is_held_by_another(&self, seen: &Seen, now: Instant) -> bool {
        let Record { holder, lease, .. } = &seen.record;
        !holder.is_empty() && *holder != self.identity && now < seen.at + *lease
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
