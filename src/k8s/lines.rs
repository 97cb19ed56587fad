//! Splits a stream of chunks into lines.

/// Cuts a stream of chunks into lines. HTTP chunks are not aligned with lines (U37).
#[derive(Debug)]
pub struct LineSplitter {
    buffer: Vec<u8>,
    /// Bytes at the front that were returned as lines already.
    taken: usize,
    /// Bytes at the front in which no line feed was found.
    searched: usize,
    line_bytes_max: usize,
}

/// A line that exceeds the limit. An API server writes no such line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line exceeds {limit} bytes")]
pub struct LineTooLong {
    /// The limit.
    pub limit: usize,
}

// === impl LineSplitter ===

impl LineSplitter {
    /// Lines of at most `line_bytes_max` bytes.
    pub fn new(line_bytes_max: usize) -> Self {
        Self { buffer: Vec::new(), taken: 0, searched: 0, line_bytes_max }
    }

    /// Takes a chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.searched = self.searched.saturating_sub(self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(chunk);
    }

    /// The next complete line without its end; `None` until more comes. Empty lines are skipped.
    ///
    /// # Errors
    /// [`LineTooLong`] when the unfinished line is longer than the limit.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        loop {
            let from = self.searched.max(self.taken);
            let Some(found) = memchr::memchr(b'\n', &self.buffer[from..]) else {
                self.searched = self.buffer.len();
                if self.buffer.len() - self.taken > self.line_bytes_max {
                    return Err(LineTooLong { limit: self.line_bytes_max });
                }
                if self.taken == self.buffer.len() {
                    // A burst must not keep its buffer for the life of the watch.
                    self.buffer = Vec::new();
                    (self.taken, self.searched) = (0, 0);
                }
                return Ok(None);
            };
            let (start, end) = (self.taken, from + found);
            (self.taken, self.searched) = (end + 1, end + 1);
            if end - start > self.line_bytes_max {
                return Err(LineTooLong { limit: self.line_bytes_max });
            }
            if !self.buffer[start..end].trim_ascii().is_empty() {
                return Ok(Some(&self.buffer[start..end]));
            }
        }
    }

    /// Bytes of a line that has not ended.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_the_chunks_are_cut() {
        let text = b"one\n\ntwo\r\nthree\nrest";
        for size in 1..=text.len() {
            let mut splitter = LineSplitter::new(100);
            let mut lines = Vec::new();
            for chunk in text.chunks(size) {
                splitter.push(chunk);
                while let Some(line) = splitter.next_line().unwrap() {
                    lines.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(lines, ["one", "two\r", "three"], "{size}");
            assert_eq!(splitter.pending(), 4);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut splitter = LineSplitter::new(10);
        splitter.push(b"0123456789");
        assert_eq!(splitter.next_line(), Ok(None));
        splitter.push(b"0");
        assert_eq!(splitter.next_line(), Err(LineTooLong { limit: 10 }));
    }
}
