//! Sections: the parts of a table that are loaded one after the other, and that queries may use when they are ready.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, FileSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use object_store::ObjectMeta;
use parquet::file::metadata::{PageIndexPolicy, RowGroupMetaData};

use super::contain::ContainExec;
use super::factory::Readers;
use super::metrics::parquet_scan;
use crate::data::Layout;
use crate::domains::DomainExec;

/// How far a load reads ahead in each partition. No query waits meanwhile, and decoding is slower than most disks.
const WINDOW_BYTES: u64 = 8 << 20;

/// Consecutive row groups of a file, with the rows of about one row group of a table in memory.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// The version of the file.
    pub(crate) file: Arc<ObjectMeta>,
    /// Row groups of the file.
    pub(crate) file_groups_count: usize,
    /// Those of the section.
    pub(crate) groups: Range<usize>,
    pub(crate) rows: u64,
}

/// A scan of whole Parquet files, in sections.
pub(crate) struct SectionScan {
    /// Its batches are in the order of the sections of a partition.
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) partitions: Vec<Vec<Section>>,
}

impl SectionScan {
    /// Cuts `plan` into sections, and these into runs of about the same number of rows, one for each partition of `layout`.
    /// `None` unless it is a scan of all rows of Parquet files.
    ///
    /// Cost: the footers of the files, unless the session has them.
    pub(crate) async fn of(plan: &Arc<dyn ExecutionPlan>, layout: &Layout) -> Result<Option<SectionScan>> {
        let on_domain = plan.downcast_ref::<DomainExec>();
        let scan = on_domain.map_or(plan, |hop| hop.children()[0]);
        let Some(contain) = scan.downcast_ref::<ContainExec>() else { return Ok(None) };
        let Some((config, source)) = parquet_scan(contain.scan()) else { return Ok(None) };
        let mut files: Vec<PartitionedFile> = Vec::new();
        let parts = || config.file_groups.iter().flat_map(FileGroup::files);
        for file in parts() {
            // The optimizer cuts a file into ranges, for the partitions of a query.
            if files.last().is_none_or(|last| last.object_meta.location != file.object_meta.location) {
                files.push(PartitionedFile { range: None, statistics: None, ..file.clone() });
            }
        }
        let bytes = |range: &FileRange| (range.end - range.start) as u64;
        let read: u64 = parts().map(|file| file.range.as_ref().map_or(file.object_meta.size, bytes)).sum();
        let is_whole = read == files.iter().map(|file| file.object_meta.size).sum::<u64>()
            && !parts().any(|file| file.extensions.get::<ParquetAccessPlan>().is_some());
        if source.filter().is_some() || config.limit.is_some() || !is_whole {
            return Ok(None);
        }

        let mut sections: Vec<(usize, Section)> = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let metadata = contain.readers.metadata(file.metadata_size_hint);
            let metadata = metadata.fetch(&file.object_meta, PageIndexPolicy::Skip).await?;
            let groups = metadata.row_groups();
            let object = Arc::new(file.object_meta.clone());
            sections.extend(cut(&object, groups, layout.row_group_rows as u64).map(|it| (index, it)));
        }

        let rows: u64 = sections.iter().map(|(_, section)| section.rows).sum();
        let count = layout.partitions_of(rows);
        let mut partitions = vec![Vec::<Section>::new(); count];
        let mut reads = vec![Vec::<(usize, ParquetAccessPlan)>::new(); count];
        let mut before = 0;
        for (index, section) in sections {
            let middle = u128::from(before + section.rows / 2);
            let partition = (middle * count as u128 / u128::from(rows.max(1))) as usize;
            // A section without rows may be the last one.
            let partition = partition.min(count - 1);
            before += section.rows;
            let reads = &mut reads[partition];
            if reads.last().is_none_or(|(last, _)| *last != index) {
                reads.push((index, ParquetAccessPlan::new_none(section.file_groups_count)));
            }
            let (_, access) = reads.last_mut().expect("there is one");
            section.groups.clone().for_each(|group| access.scan(group));
            partitions[partition].push(section);
        }
        let file_groups = reads.into_iter().map(|reads| {
            reads.into_iter().map(|(index, access)| files[index].clone().with_extension(access)).collect()
        });

        let config = FileScanConfigBuilder::from(config.clone())
            .with_file_groups(file_groups.map(FileGroup::new).collect())
            .with_preserve_order(true)
            .build();
        let readers = Readers {
            window_bytes: contain.readers.window_bytes.min(WINDOW_BYTES),
            keep: false,
            keep_decoded: false,
            ..(*contain.readers).clone()
        };
        let scan: Arc<dyn ExecutionPlan> =
            Arc::new(ContainExec::over(&config, source.clone(), readers, None));
        let plan = match on_domain {
            Some(_) => replace_children_if_necessary(Arc::clone(plan), vec![scan])?,
            None => scan,
        };
        Ok(Some(SectionScan { plan, partitions }))
    }
}

/// The rest of a scan, without the sections that are ready.
pub(crate) struct Remainder {
    /// Positions of the sections that the scan would read: those of files that it names, of the same version.
    pub(crate) replaced: Vec<usize>,
    /// The scan without them; `None` if nothing is left.
    pub(crate) plan: Option<Arc<dyn ExecutionPlan>>,
}

impl Remainder {
    /// `None` if `plan` is no scan of Parquet files that could be read without the sections.
    pub(crate) fn of(plan: &dyn ExecutionPlan, ready: &[&Section]) -> Option<Remainder> {
        let (config, _) = parquet_scan(plan)?;
        let mut replaced = Vec::new();
        let mut file_groups = Vec::new();
        for files in &config.file_groups {
            let mut left = Vec::new();
            for file in files.files() {
                if file.range.is_some() || file.extensions.get::<ParquetAccessPlan>().is_some() {
                    return None;
                }
                let sections = ready.iter().enumerate().filter(|(_, it)| *it.file == file.object_meta);
                let mut access: Option<ParquetAccessPlan> = None;
                for (position, section) in sections {
                    replaced.push(position);
                    let access =
                        access.get_or_insert_with(|| ParquetAccessPlan::new_all(section.file_groups_count));
                    section.groups.clone().for_each(|group| access.skip(group));
                }
                // Statistics of the whole file do not describe a part of it.
                let file = PartitionedFile { statistics: None, ..file.clone() };
                match access {
                    Some(access) if access.row_group_indexes().is_empty() => {}
                    Some(access) => left.push(file.with_extension(access)),
                    None => left.push(file),
                }
            }
            file_groups.extend((!left.is_empty()).then(|| FileGroup::new(left)));
        }
        if file_groups.is_empty() {
            return Some(Remainder { replaced, plan: None });
        }
        let config = FileScanConfigBuilder::from(config.clone())
            .with_file_groups(file_groups)
            .with_statistics(config.statistics().to_inexact())
            .build();
        Some(Remainder { replaced, plan: Some(DataSourceExec::from_data_source(config)) })
    }
}

/// The sections of a file: as many of its row groups as fit into `rows_max`, at least one.
fn cut<'a>(
    file: &'a Arc<ObjectMeta>,
    groups: &'a [RowGroupMetaData],
    rows_max: u64,
) -> impl Iterator<Item = Section> + 'a {
    let rows_of = |group: &RowGroupMetaData| group.num_rows().max(0) as u64;
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut rows = rows_of(groups.get(start)?);
        let mut end = start + 1;
        while let Some(group) = groups.get(end)
            && rows + rows_of(group) <= rows_max
        {
            rows += rows_of(group);
            end += 1;
        }
        let section =
            Section { file: Arc::clone(file), file_groups_count: groups.len(), groups: start..end, rows };
        start = end;
        Some(section)
    })
}
