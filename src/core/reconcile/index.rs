//! Finds names among many. The ends of ids differ, not their beginnings: the last eight bytes are compared first, as one
//! number, which is what makes a thousand nodes in ten groups cheap.

fn tail(name: &str) -> u64 {
    let bytes = name.as_bytes();
    if let Some(last) = bytes.last_chunk::<8>() {
        return u64::from_be_bytes(*last);
    }
    bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b))
}

/// Names with their places in a slice.
#[derive(Debug, Default)]
pub(super) struct Index<'a> {
    names: Vec<&'a str>,
    places: Vec<(u64, u32)>,
}

impl<'a> Index<'a> {
    pub(super) fn new(names: impl Iterator<Item = &'a str>) -> Index<'a> {
        let names: Vec<&str> = names.collect();
        let mut places: Vec<(u64, u32)> = names.iter().map(|n| tail(n)).zip(0..).collect();
        places.sort_unstable();
        Index { names, places }
    }

    /// The places of this name, lowest first.
    pub(super) fn all<'n>(&'n self, name: &'n str) -> impl Iterator<Item = usize> + use<'n, 'a> {
        let key = tail(name);
        let from = self.places.partition_point(|(t, _)| *t < key);
        let same = self.places.get(from..).unwrap_or_default().iter().take_while(move |(t, _)| *t == key);
        let place = same.filter_map(|(_, i)| usize::try_from(*i).ok());
        place.filter(move |i| self.names.get(*i).is_some_and(|n| *n == name))
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
