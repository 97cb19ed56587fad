//! The joins that streams share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::hub::{InformerId, Join};

/// The joins of streams. Streams that ask for the same share one.
#[derive(Default)]
pub(in crate::serve) struct Joins(Mutex<HashMap<Asked, Weak<Join>>>);

/// The selected informers, and the related ones, each with whether it is linked and whether it may own.
pub(super) type Asked = (Vec<InformerId>, Vec<(InformerId, bool, bool)>);

impl Joins {
    /// The join that streams of the same request share. Makes it for the first of them.
    ///
    /// # Errors
    /// That of `make`.
    pub(super) fn shared<E>(
        &self,
        asked: Asked,
        make: impl FnOnce() -> Result<Join, E>,
    ) -> Result<Arc<Join>, E> {
        let mut joins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(join) = joins.get(&asked).and_then(Weak::upgrade) {
            return Ok(join);
        }
        let join = Arc::new(make()?);
        joins.retain(|_, join| join.strong_count() > 0);
        joins.insert(asked, Arc::downgrade(&join));
        Ok(join)
    }
}
