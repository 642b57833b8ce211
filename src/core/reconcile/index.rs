//! Finds names among many. The ends of ids differ, not their beginnings: the last sixteen bytes are compared first, as one
//! number, which is what makes a thousand nodes in ten groups cheap.

fn tail(name: &str) -> u128 {
    let bytes = name.as_bytes();
    let mut last = [0_u8; 16];
    for (to, from) in last.iter_mut().rev().zip(bytes.iter().rev()) {
        *to = *from;
    }
    u128::from_be_bytes(last)
}

/// Names with their places in a slice.
#[derive(Debug, Default)]
pub(super) struct Index<'a> {
    entries: Vec<(u128, &'a str, usize)>,
}

impl<'a> Index<'a> {
    pub(super) fn new(names: impl Iterator<Item = &'a str>) -> Index<'a> {
        let mut entries: Vec<_> = names.enumerate().map(|(i, name)| (tail(name), name, i)).collect();
        entries.sort_unstable_by_key(|(tail, _, i)| (*tail, *i));
        Index { entries }
    }

    /// The places of this name, lowest first.
    pub(super) fn all<'n>(&'n self, name: &'n str) -> impl Iterator<Item = usize> + use<'n, 'a> {
        let key = tail(name);
        let from = self.entries.partition_point(|(t, _, _)| *t < key);
        let same = self.entries.get(from..).unwrap_or_default().iter().take_while(move |(t, _, _)| *t == key);
        same.filter(move |(_, n, _)| *n == name).map(|(_, _, i)| *i)
    }

    /// The first place of this name.
    pub(super) fn first(&self, name: &str) -> Option<usize> {
        self.all(name).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_end_alike_are_told_apart_and_one_that_comes_twice_is_found_twice() {
        let long = |start: &str| format!("{start}-0123456789abcdef");
        let names = [long("a"), long("b"), long("a"), "short".to_owned(), String::new()];
        let index = Index::new(names.iter().map(String::as_str));
        assert_eq!(index.all(&long("a")).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(index.all(&long("b")).collect::<Vec<_>>(), [1]);
        assert_eq!((index.first("short"), index.first(""), index.first("0123456789abcdef")), (Some(3), Some(4), None));
    }
}
