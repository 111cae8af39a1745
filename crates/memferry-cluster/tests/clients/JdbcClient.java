// A client of `memferry serve` by JDBC. The test clients.rs starts it: JdbcClient URL USER PASSWORD ROWS.

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;

public class JdbcClient {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        long rowsCount = Long.parseLong(arguments[3]);
        try (Connection connection = DriverManager.getConnection(url, arguments[1], arguments[2])) {
            try (Statement statement = connection.createStatement();
                    ResultSet rows = statement.executeQuery("select count(*) as n, min(name) as least from t")) {
                check(rows.next() && rows.getLong("n") == rowsCount, "the number of rows");
                check(rows.getString("least").equals("name 0"), "the least name");
                check(!rows.next(), "one row");
            }
            try (PreparedStatement statement =
                    connection.prepareStatement("select count(*) as n from t where v < ? and name like ?")) {
                for (long most : new long[] {10, 0, 25}) {
                    statement.setLong(1, most);
                    statement.setString(2, "name%");
                    try (ResultSet rows = statement.executeQuery()) {
                        check(rows.next() && rows.getLong(1) == most, "rows below " + most);
                        // A client that leaves before the end counts as disconnected.
                        check(!rows.next(), "one row below " + most);
                    }
                }
            }
            DatabaseMetaData metadata = connection.getMetaData();
            check(metadata.getDatabaseProductName().equals("memferry"), metadata.getDatabaseProductName());
            check(metadata.isReadOnly(), "reads only");
            check(names(metadata.getCatalogs(), "TABLE_CAT").contains("datafusion"), "catalogs");
            check(names(metadata.getSchemas(), "TABLE_SCHEM").contains("public"), "schemas");
            check(names(metadata.getTables(null, "public", "t", null), "TABLE_NAME").equals(List.of("t")), "tables");
            List<String> columns = names(metadata.getColumns(null, "public", "t", null), "COLUMN_NAME");
            check(columns.equals(List.of("v", "name")), "columns " + columns);
            check(names(metadata.getPrimaryKeys(null, "public", "t"), "COLUMN_NAME").isEmpty(), "keys");
            refused(connection, "selec 1", "cannot parse the statement");
            refused(connection, "drop table t", "only reads");
        }
        try (Connection connection = DriverManager.getConnection(url, arguments[1], "wrong")) {
            throw new AssertionError("a wrong password was accepted");
        } catch (SQLException error) {
            check(error.getMessage().contains("user or password is wrong"), error.getMessage());
        }
        System.out.println("jdbc: ok");
    }

    private static List<String> names(ResultSet rows, String column) throws SQLException {
        List<String> names = new ArrayList<>();
        // The driver calls rows that are not closed a leak.
        try (rows) {
            while (rows.next()) {
                names.add(rows.getString(column));
            }
        }
        return names;
    }

    private static void refused(Connection connection, String sql, String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        } catch (SQLException error) {
            check(error.getMessage().contains(text), error.getMessage());
            return;
        }
        throw new AssertionError(sql + " was accepted");
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("wrong: " + what);
        }
    }
}
