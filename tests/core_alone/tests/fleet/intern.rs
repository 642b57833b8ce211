//! One handle per distinct value, so that a world of heap-backed values is a handful of small numbers.
//!
//! The shipped functions are called once per distinct input and their answers kept: nothing here decides anything.
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::ops::Deref;
use std::sync::RwLock;

/// Stands for a value of one table. Equal and ordered as its number is.
pub struct Handle<T: 'static>(&'static Numbered<T>);
struct Numbered<T> {
    number: u32,
    value: T,
}

impl<T> Handle<T> {
    pub fn number(self) -> u32 {
        self.0.number
    }
    pub fn value(self) -> &'static T {
        &self.0.value
    }
}
impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Handle<T> {}
impl<T> Deref for Handle<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}
impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}
impl<T> Eq for Handle<T> {}
impl<T> PartialOrd for Handle<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Handle<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.number.cmp(&other.0.number)
    }
}
impl<T> Hash for Handle<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}
impl<T: fmt::Debug> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

/// All distinct values of one kind. They live as long as the test process.
pub struct Table<K: 'static, T: 'static> {
    known: RwLock<HashMap<K, Handle<T>>>,
}
impl<K: Hash + Eq, T> Table<K, T> {
    pub fn new() -> Self {
        Table { known: RwLock::new(HashMap::new()) }
    }
    pub fn get(&self, key: K, value: impl FnOnce(&K) -> T) -> Handle<T> {
        if let Some(h) = self.known.read().unwrap().get(&key) {
            return *h;
        }
        let mut known = self.known.write().unwrap();
        if let Some(h) = known.get(&key) {
            return *h;
        }
        let number = u32::try_from(known.len()).unwrap();
        let handle = Handle(Box::leak(Box::new(Numbered { number, value: value(&key) })));
        known.insert(key, handle);
        handle
    }
    pub fn len(&self) -> usize {
        self.known.read().unwrap().len()
    }
}

const SHARDS: usize = 32;

/// Quick, and the keys are our own.
#[derive(Clone, Copy, Default)]
pub struct Quick(u64);
impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
}
pub type Quickly = BuildHasherDefault<Quick>;

/// Remembers what a function of small arguments gave.
pub struct Memo<K, V> {
    shards: Vec<RwLock<HashMap<K, V, Quickly>>>,
}
impl<K: Hash + Eq, V: Copy> Memo<K, V> {
    pub fn new() -> Self {
        Memo { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }
    pub fn get(&self, key: K, compute: impl FnOnce() -> V) -> V {
        let shard = &self.shards[Quickly::default().hash_one(&key) as usize % SHARDS];
        if let Some(v) = shard.read().unwrap().get(&key) {
            return *v;
        }
        let v = compute();
        shard.write().unwrap().insert(key, v);
        v
    }
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().unwrap().len()).sum()
    }
}
