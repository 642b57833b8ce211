//! The book of alerts on the disk. Nothing waits for it: what cannot be stored is sent all the same.

use super::disk::{ALERTS_BYTES_MAX, ALERTS_NAME, Disk};
use super::snapshot::{Loaded, SaveError, SnapshotFile};
use super::writer::Writer;
use crate::core::alert::{Book, SCHEMA};
use crate::core::ids::InstanceId;
use std::sync::Arc;

/// How the book was found at start.
#[derive(Debug)]
pub enum FoundBook {
    /// There never was one.
    Fresh,
    /// Whole, and of this instance.
    Kept(Box<Book>),
    /// It cannot be used, or is another instance's: set aside, with a sentence for people. What still fires is found again.
    Lost(String),
}

/// The file of the book, and its one writer.
pub struct Ledger<D> {
    writer: Writer<D, Book>,
    generation: std::sync::atomic::AtomicU64,
}

fn file<D: Disk>(disk: &Arc<D>) -> SnapshotFile<D> {
    SnapshotFile::new(disk.clone(), ALERTS_NAME, SCHEMA).within(ALERTS_BYTES_MAX)
}

impl<D: Disk> Ledger<D> {
    /// Reads the file. Blocks. Whatever cannot be used is set aside, bytes and all.
    pub fn open(disk: &Arc<D>, instance: &InstanceId) -> (Ledger<D>, FoundBook) {
        let file = file(disk);
        let (generation, why) = match file.load::<Book>() {
            Loaded::Missing => return (Ledger::at(disk, 0, false), FoundBook::Fresh),
            Loaded::Good { generation, body } if body.instance == *instance => {
                return (Ledger::at(disk, generation, false), FoundBook::Kept(Box::new(body)));
            }
            Loaded::Good { generation, body } => (generation, format!("it is of instance {}", body.instance)),
            Loaded::Newer { schema } => (0, format!("it has schema {schema}, this version knows {SCHEMA}")),
            Loaded::Unreadable { why } => (0, why),
        };
        let (aside, blocked) = match file.set_aside(&why) {
            Ok(path) => (format!("set aside as {}", path.display()), false),
            Err(e) => (format!("it could not be set aside, so nothing is written over it: {e}"), true),
        };
        (
            Ledger::at(disk, generation, blocked),
            FoundBook::Lost(format!("the book of alerts cannot be used: {why}; {aside}")),
        )
    }

    /// Where it could not be read in time: what is there is set aside before the first write.
    pub fn unread(disk: &Arc<D>) -> Ledger<D> {
        Ledger::at(disk, 0, true)
    }

    fn at(disk: &Arc<D>, generation: u64, blocked: bool) -> Ledger<D> {
        Ledger { writer: Writer::new(file(disk), blocked), generation: generation.into() }
    }

    /// Writes it, within a bounded time. Of several that wait only the latest is written.
    ///
    /// # Errors
    /// It is not stored (yet).
    pub async fn save(&self, book: Book) -> Result<(), SaveError> {
        let generation = self.generation.fetch_add(1, std::sync::atomic::Ordering::SeqCst).saturating_add(1);
        self.writer.save(generation, book).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::fault::{FaultDisk, FaultFiles};

    fn book(instance: &str) -> Book {
        Book::new("f".into(), instance.into(), "n".into())
    }

    #[tokio::test]
    async fn a_book_comes_back_and_one_of_another_instance_or_in_pieces_is_set_aside_with_its_bytes() {
        let files = FaultFiles::default();
        let disk = Arc::new(FaultDisk::new(&files));
        let me = InstanceId("i-1".into());
        let (ledger, found) = Ledger::open(&disk, &me);
        assert!(matches!(found, FoundBook::Fresh));
        ledger.save(book("i-1")).await.unwrap();
        let (_, found) = Ledger::open(&disk, &me);
        assert!(matches!(found, FoundBook::Kept(kept) if *kept == book("i-1")));
        let (_, found) = Ledger::open(&disk, &InstanceId("i-2".into()));
        assert!(matches!(found, FoundBook::Lost(why) if why.contains("of instance i-1")));
        disk.replace(ALERTS_NAME, b"{").unwrap();
        let (ledger, found) = Ledger::open(&disk, &me);
        assert!(matches!(found, FoundBook::Lost(why) if why.contains("set aside as")));
        ledger.save(book("i-1")).await.unwrap();
        assert!(disk.list().unwrap().iter().filter(|n| n.contains("quarantine-")).count() >= 2, "the bytes are kept");
    }
}
