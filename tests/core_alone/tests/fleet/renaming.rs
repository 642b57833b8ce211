//! The same values under other node numbers, which carry no meaning: one world of each set of renamed ones is kept.
use super::names::{What, cycle_of};
use super::quotient::{renamed_durable, renamed_seen};
use super::*;
use backstop_core_alone::ids::{CycleId, InstanceId};
use backstop_core_alone::record::{Finished, Latch, Slot};
use std::sync::OnceLock;

/// Where node `i` goes, for each way of naming three nodes.
pub const PERMUTED: [[usize; NODES]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]];

/// What it is called under each way of naming the nodes.
pub struct Renamed<T>(pub [OnceLock<T>; 6]);
impl<T> Default for Renamed<T> {
    fn default() -> Self {
        Renamed(std::array::from_fn(|_| OnceLock::new()))
    }
}
impl<T> std::fmt::Debug for Renamed<T> {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
impl Tables {
    pub fn rename_ram(&self, ram: Ram, p: u8) -> Ram {
        let to = &PERMUTED[usize::from(p)];
        *ram.value().renamed.0[usize::from(p)].get_or_init(|| {
            let (d, v) = (&ram.disk.d, &ram.v);
            self.ram(&renamed_durable(&self.names, d, to), &renamed_seen(&self.names, v, to), &ram.now)
        })
    }
    pub fn rename_disk(&self, disk: Disk, p: u8) -> Disk {
        let to = &PERMUTED[usize::from(p)];
        *disk.value().renamed.0[usize::from(p)].get_or_init(|| self.disk(renamed_durable(&self.names, &disk.d, to)))
    }
    pub fn rename_record(&self, record: Rec, p: u8) -> Rec {
        let to = &PERMUTED[usize::from(p)];
        *record.value().renamed.0[usize::from(p)].get_or_init(|| {
            let mut s = record.sheet;
            for i in 0..NODES {
                s.slot[to[i]] = record.sheet.slot[i];
                s.latch[to[i]] = record.sheet.latch[i];
                s.hold[to[i]] = record.sheet.hold[i];
                s.member[to[i]] = record.sheet.member[i];
            }
            self.sheet_record(&s)
        })
    }
    pub fn rename_write(&self, write: Write, p: u8) -> Write {
        let to = &PERMUTED[usize::from(p)];
        *write.value().renamed.0[usize::from(p)].get_or_init(|| self.op(self.renamed_op(&write.op, to)))
    }

    fn renamed_op(&self, op: &Op, to: &[usize]) -> Op {
        let names = &self.names;
        let name = |i: &InstanceId| names.instance[to[names.node(i)]].clone();
        let id = |c: &CycleId| {
            let (i, n) = cycle_of(c);
            names.plans[&(to[i], n, What::Patch)].id.clone()
        };
        let latch = |l: &Latch| Latch { instance: name(&l.instance), ..l.clone() };
        match op {
            Op::Claim { instance, slot } => {
                Op::Claim { instance: name(instance), slot: Slot { cycle: id(&slot.cycle), ..slot.clone() } }
            }
            Op::Confirm { instance, cycle, leaving } => {
                Op::Confirm { instance: name(instance), cycle: id(cycle), leaving: *leaving }
            }
            Op::AddLatch { cycle, latch: l } => Op::AddLatch { cycle: id(cycle), latch: latch(l) },
            Op::Free { instance, cycle, latch: l, finished } => Op::Free {
                instance: name(instance),
                cycle: id(cycle),
                latch: l.as_ref().map(latch),
                finished: finished.as_ref().map(|f| Finished { cycle: id(&f.cycle), ..f.clone() }),
            },
            Op::Hold { instance, hold, instead_of } => Op::Hold {
                instance: name(instance),
                hold: hold.clone(),
                instead_of: instead_of.as_ref().map(|(c, l)| (id(c), l.as_ref().map(latch))),
            },
            Op::EndHold { instance } => Op::EndHold { instance: name(instance) },
            other => panic!("an agent never writes {other:?}"),
        }
    }
}

impl Fleet {
    /// Node numbers carry no meaning: keep one world of each set of renamed ones.
    pub fn canonical(&self, w: World) -> World {
        let n: u8 = match self.f.n {
            _ if !self.f.symmetric || self.f.recovery => return w,
            2 => 2,
            3 => 6,
            _ => return w,
        };
        (0..n).map(|p| self.renamed(&w, p)).min().unwrap()
    }

    pub fn renamed(&self, w: &World, p: u8) -> World {
        if p == 0 {
            return *w;
        }
        let to = &PERMUTED[usize::from(p)];
        let mut r = *w;
        for i in 0..self.f.n {
            let mut n = w.node[i];
            n.disk = self.t.rename_disk(n.disk, p);
            n.ram = n.ram.map(|ram| self.t.rename_ram(ram, p));
            r.node[to[i]] = n;
        }
        r.rec = self.t.rename_record(w.rec, p);
        r.late = w.late.map(|(i, op)| (u8::try_from(to[usize::from(i)]).unwrap(), self.t.rename_write(op, p)));
        r
    }
}
