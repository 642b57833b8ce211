//! The store that the config names, behind one type.

use super::elasticsearch::EsFleet;
use super::file::FileFleet;
use crate::core::error::Fault;
use crate::ports::{CasFault, FleetStore, Lying, Version};

/// One of the stores.
#[derive(Clone, Debug)]
pub enum Store {
    /// Files of one host; also where there is none, and each call says why.
    File(FileFleet),
    /// The cluster.
    Elasticsearch(EsFleet),
}

impl FleetStore for Store {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        match self {
            Store::File(files) => files.read().await,
            Store::Elasticsearch(cluster) => cluster.read().await,
        }
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        match self {
            Store::File(files) => files.compare_and_set(expected, bytes).await,
            Store::Elasticsearch(cluster) => cluster.compare_and_set(expected, bytes).await,
        }
    }

    async fn lies_there(&self) -> Result<Option<Lying>, Fault> {
        match self {
            Store::File(files) => files.lies_there().await,
            Store::Elasticsearch(cluster) => cluster.lies_there().await,
        }
    }

    async fn create(&self, bytes: Vec<u8>) -> Result<Version, CasFault> {
        match self {
            Store::File(files) => files.create(bytes).await,
            Store::Elasticsearch(cluster) => cluster.create(bytes).await,
        }
    }

    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        match self {
            Store::File(files) => files.members().await,
            Store::Elasticsearch(cluster) => cluster.members().await,
        }
    }

    async fn some_members(&self, instances: &[&str]) -> Result<Vec<Vec<u8>>, Fault> {
        match self {
            Store::File(files) => files.some_members(instances).await,
            Store::Elasticsearch(cluster) => cluster.some_members(instances).await,
        }
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        match self {
            Store::File(files) => files.put_member(instance, bytes).await,
            Store::Elasticsearch(cluster) => cluster.put_member(instance, bytes).await,
        }
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        match self {
            Store::File(files) => files.delete_member(instance).await,
            Store::Elasticsearch(cluster) => cluster.delete_member(instance).await,
        }
    }
}
